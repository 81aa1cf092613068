"""Reads prompt files: one JSON object with ``id`` and ``text`` on each line, others allowed beside them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import InvalidRequestError

_FOLDER = Path(__file__).resolve().parents[1] / "engines" / "demo_pair" / "prompts"

HELD_OUT = _FOLDER / "heldout.jsonl"
"""Text that the demonstration pair never saw in training."""

CORPORA = (HELD_OUT, *(_FOLDER / f"{name}.jsonl" for name in ("mixed", "repetitive", "adversarial")))
"""Besides, text of several kinds, text that repeats itself, and text that no draft can guess."""


@dataclass(frozen=True)
class Prompt:
    """One text to continue.

    Attributes:
        prompt_id: Names it in reports.
        text: The text.
    """

    prompt_id: str
    text: str


def read_prompts(path: Path, limit: int) -> tuple[Prompt, ...]:
    """Read the first ``limit`` prompts of a file.

    Raises:
        InvalidRequestError: The file cannot be read, holds a bad line, the same id twice, or fewer prompts.
    """
    return draw_prompts((path,), limit)


def draw_prompts(paths: Sequence[Path], limit: int) -> tuple[Prompt, ...]:
    """Read ``limit`` prompts, taking turns between files until the shorter ones are used up.

    Raises:
        InvalidRequestError: As ``read_prompts``.
    """
    turns = itertools.zip_longest(*(_read(path, limit) for path in paths))
    prompts = [prompt for turn in turns for prompt in turn if prompt is not None][:limit]
    files = ", ".join(map(str, paths))
    if len(prompts) < limit or limit < 1:
        raise InvalidRequestError(
            "the prompt file holds too few prompts",
            values=f"{len(prompts)} in {files}, {limit} wanted",
            limit="at least one, and as many as are asked for",
            remedy=f"ask for 1 to {len(prompts)} prompts or name another file with --prompt-file",
        )
    if len({prompt.prompt_id for prompt in prompts}) < len(prompts):
        raise InvalidRequestError(
            "the prompt file uses an id twice",
            values=files,
            limit="an id names one prompt",
            remedy="give every line an id of its own",
        )
    return tuple(prompts)


def _read(path: Path, limit: int) -> list[Prompt]:
    """At most ``limit`` prompts of a file."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        documents = [json.loads(line) for line in lines[: max(limit, 0)]]
        return [Prompt(str(document["id"]), str(document["text"])) for document in documents]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(
            "the prompt file cannot be read",
            values=f"{path}: {error!r}",
            limit="each line is a JSON object with id and text",
            remedy="name another file with --prompt-file",
        ) from error
