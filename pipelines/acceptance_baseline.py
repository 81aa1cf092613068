"""Acceptance of a pair over fixed prompts, as it was measured before the pair served anybody.

It stands in the pair's calibration file. A rollout asks the same prompts again, with the same draft length,
of the pair as it is served.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import EngineLoadError
from pipelines.whole_file import write_whole

_KEY = "baseline"


@dataclass(frozen=True)
class BaselinePrompt:
    """One text.

    Attributes:
        name: In its prompt file.
        input_ids: Its tokens.
    """

    name: str
    input_ids: tuple[int, ...]


@dataclass(frozen=True)
class AcceptanceBaseline:
    """What the pair made of the prompts, greedy.

    Attributes:
        num_draft_tokens: Of every round.
        max_tokens: Of every answer.
        prompts: In the order in which they were asked, all at once.
        num_rounds: Target passes of all answers together.
        total_draft_tokens: Draft tokens proposed.
        accepted_per_position: Entry i: rounds in which draft position i was accepted.
    """

    num_draft_tokens: int
    max_tokens: int
    prompts: tuple[BaselinePrompt, ...]
    num_rounds: int
    total_draft_tokens: int
    accepted_per_position: tuple[int, ...]

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 if nothing was drafted."""
        return sum(self.accepted_per_position) / max(1, self.total_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds."""
        return 1 + sum(self.accepted_per_position) / max(1, self.num_rounds)

    def add_to(self, calibration_file: Path) -> None:
        """Write it into a calibration that is there; the file is replaced as a whole.

        Raises:
            EngineLoadError: It is not there.
        """
        rates = {
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
        }
        document = {**_document(calibration_file), _KEY: {**asdict(self), **rates}}
        write_whole(calibration_file, json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, calibration_file: Path) -> AcceptanceBaseline | None:
        """The baseline of a calibration; None if it has none, as those of earlier versions.

        Raises:
            EngineLoadError: The file is missing, or its baseline says what cannot be.
        """
        raw = _document(calibration_file).get(_KEY)
        if raw is None:
            return None
        try:
            prompts = tuple(
                BaselinePrompt(str(each["name"]), _whole(each["input_ids"])) for each in raw["prompts"]
            )
            names = ("num_draft_tokens", "max_tokens", "num_rounds", "total_draft_tokens")
            baseline = cls(
                prompts=prompts,
                accepted_per_position=_whole(raw["accepted_per_position"]),
                **dict(zip(names, _whole([raw[name] for name in names]), strict=True)),
            )
            _check(baseline)
        except (ValueError, KeyError, TypeError) as error:
            raise _unusable(calibration_file, error) from None
        return baseline


def _whole(values: Sequence[Any]) -> tuple[int, ...]:
    if any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{values}: whole numbers, none below 0")
    return tuple(values)


def _check(baseline: AcceptanceBaseline) -> None:
    """Raise ValueError for what no measurement gives."""
    if not baseline.prompts or not all(prompt.input_ids for prompt in baseline.prompts):
        raise ValueError("no prompts, or an empty one")
    accepted = baseline.accepted_per_position
    if len(accepted) != baseline.num_draft_tokens or not accepted:
        raise ValueError(f"accepted_per_position={accepted}: one number for each of num_draft_tokens")
    if list(accepted) != sorted(accepted, reverse=True) or accepted[0] > baseline.num_rounds:
        raise ValueError(f"accepted_per_position={accepted}: at most num_rounds, and falling")
    if sum(accepted) > baseline.total_draft_tokens:
        raise ValueError(f"accepted {sum(accepted)} of {baseline.total_draft_tokens} draft tokens")


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from None
    return document


def _unusable(path: Path, error: Exception) -> EngineLoadError:
    return EngineLoadError(
        "the acceptance baseline of the pair cannot be used",
        values=f"{path}: {error!r}",
        limit="a file that python -m pipelines.calibration wrote",
        remedy="delete it and run 'make repository', which measures the pair anew",
    )
