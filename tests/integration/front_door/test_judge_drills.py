"""Plants every fault between ``draftproof verify`` and a real front door, as ``make verify-faults`` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.server import Server
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.size import Size
from tests.drills.judge_faults import try_faults
from tests.integration.front_door.conftest import url_of
from tests.support.fault_proxy import Memory

pytestmark = [pytest.mark.triton, pytest.mark.long, pytest.mark.xdist_group("front door")]


TOO_LONG = ("the second of two calls is lost",)
"""Faults of requests that are too long for the model of this test."""


def test_every_planted_fault_fails_and_nothing_else_does(
    door: Server, door_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    vocabulary = Vocabulary.from_file(door_pair[1] / "tokenizer.json")
    spaces = [token_id for token_id, text in enumerate(vocabulary.bytes_of) if text.isspace()]
    body = {"logit_bias": {str(token_id): -100 for token_id in spaces}}  # JSON would be filled with them
    prompts = tmp_path / "short.txt"
    prompts.write_text("\n---\n".join(f"x{number} = [" for number in range(120)), encoding="utf-8")
    sizes = {"quick": Size(None, 24, 16), "whole": Size(None, 120, 16)}
    about: dict[str, Any] = {}
    found = list(try_faults(Memory(url_of(door)), about, prompts=prompts, body=body, **sizes))
    planted = {each["drill"]: each["faults"] for each in found if each["questions"]}
    assert {each["drill"] for each in found} - set(planted) <= {"nothing", *TOO_LONG}
    assert not any(planted.values()), found
