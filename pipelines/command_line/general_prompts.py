"""Prompts for pairs without prompts of their own: English text, code, lists and dialogue.

They are written for this project and depend on no tokenizer. Each set combines subjects with beginnings, so
its prompts resemble each other more than those of real clients do.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from pipelines.command_line.prompt_files import json_of_messages, read_prompts
from pipelines.command_line.prompts import Prompt, Prompts

GENERAL = "the built-in general prompts"
FILE = Path(__file__).with_name("general_prompts.json")


def general_prompts() -> Prompts:
    """Return the prompts, which are the same each time."""
    return Prompts(GENERAL, _sets("forms"))


def chat_prompts() -> Prompts:
    """Return the prompts for a model with a chat template: code and dialogue are asked in messages, too."""
    return Prompts(GENERAL, {**_sets("forms"), **_sets("questions")})


def _sets(kind: str) -> dict[str, tuple[Prompt, ...]]:
    parts = json.loads(FILE.read_text(encoding="utf-8"))
    sets = {}
    for name, forms in parts[kind].items():
        words = parts["tasks" if name.startswith("code") else "subjects"]
        texts = (form.format(**each) for each, form in itertools.product(words, forms))
        named = ((f"{name}-{number:04d}", text) for number, text in enumerate(texts, start=1))
        if kind == "questions":
            sets[name] = tuple(
                Prompt(prompt_id, "", messages=json_of_messages([{"role": "user", "content": text}]))
                for prompt_id, text in named
            )
        else:
            sets[name] = tuple(Prompt(*each) for each in named)
    return sets


def given_prompts(path: Path | None) -> Prompts:
    """Return the prompts of a file or a folder; the general ones if there is none.

    Raises:
        InvalidRequestError: See ``read_prompts``.
    """
    return general_prompts() if path is None else read_prompts(path)
