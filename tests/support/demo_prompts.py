"""Prompts of the demonstration pair, which tests send to real servers."""

from __future__ import annotations

from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompt
from tests.conftest import REPOSITORY_ROOT

DEMO_PROMPTS = REPOSITORY_ROOT / "engines" / "demo_pair" / "prompts"
HELD_OUT = DEMO_PROMPTS / "code.jsonl"


def held_out_prompts(count: int) -> tuple[Prompt, ...]:
    """Return the first prompts of text that the pair was not trained on."""
    return read_prompts(HELD_OUT).draw(count, least=count).all
