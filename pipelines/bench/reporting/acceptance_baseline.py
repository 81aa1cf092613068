"""The acceptance baseline of a pair: its acceptance over fixed prompts, measured before it serves.

The pair's calibration file contains it. A rollout repeats the same prompts with the same draft length on the
loaded pair.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt

from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.errors import DraftproofError, EngineLoadError

_KEY = "baseline"
_REMEDY = "delete it and run 'draftproof repository', which measures the pair again"


@dataclass(frozen=True)
class BaselinePrompt:
    """One prompt of the baseline.

    Attributes:
        name: Name in its prompt file.
        input_ids: Token ids.
    """

    name: str
    input_ids: tuple[NonNegativeInt, ...]


@configuration.strict
@dataclass(frozen=True)
class AcceptanceBaseline:
    """Total counts over greedy answers to all prompts.

    Attributes:
        num_draft_tokens: Draft length of every round.
        max_tokens: Most output tokens of every answer.
        prompts: Prompts in the order in which they were sent, concurrently.
        num_rounds: Number of target passes.
        total_draft_tokens: Number of proposed draft tokens.
        accepted_per_position: Entry i: number of rounds that accepted draft position i.
    """

    num_draft_tokens: NonNegativeInt
    max_tokens: NonNegativeInt
    prompts: tuple[BaselinePrompt, ...]
    num_rounds: NonNegativeInt
    total_draft_tokens: NonNegativeInt
    accepted_per_position: tuple[NonNegativeInt, ...]

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 if nothing was drafted."""
        return sum(self.accepted_per_position) / max(1, self.total_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / rounds."""
        return 1 + sum(self.accepted_per_position) / max(1, self.num_rounds)

    def add_to(self, calibration_file: Path) -> None:
        """Add the baseline to an existing calibration file, which is replaced atomically.

        Raises:
            EngineLoadError: The file is missing.
        """
        rates = {
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
        }
        document = {**_document(calibration_file), _KEY: {**asdict(self), **rates}}
        write_whole(calibration_file, json.dumps(document, indent=1) + "\n")

    @classmethod
    def read(cls, calibration_file: Path) -> AcceptanceBaseline:
        """Read the baseline of a calibration file.

        Raises:
            EngineLoadError: The file is missing, or its baseline is missing or invalid.
        """
        document = _document(calibration_file)
        try:
            raw = document[_KEY]
            counts = {each.name: raw[each.name] for each in fields(cls)}  # without the rates, which follow
            baseline = configuration.parse(cls, counts, EngineLoadError, _REMEDY)
            _check(baseline)
        except (DraftproofError, ValueError, KeyError, TypeError) as error:
            raise _unusable(calibration_file, error) from None
        return baseline


def _check(baseline: AcceptanceBaseline) -> None:
    """Raise ValueError for counts that are impossible."""
    if not baseline.prompts or not all(prompt.input_ids for prompt in baseline.prompts):
        raise ValueError("there are no prompts, or one is empty")
    accepted = baseline.accepted_per_position
    if len(accepted) != baseline.num_draft_tokens or not accepted:
        raise ValueError(f"accepted_per_position={accepted}: must have num_draft_tokens entries")
    if list(accepted) != sorted(accepted, reverse=True) or accepted[0] > baseline.num_rounds:
        raise ValueError(f"accepted_per_position={accepted}: must not rise, nor exceed num_rounds")
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
        values=f"{path}: {error}",
        limit="a file that python -m pipelines.bench.calibration wrote",
        remedy=_REMEDY,
    )
