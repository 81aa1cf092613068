"""Stores the measurements of a pair: the costs of its steps, and acceptance rates by margin."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pipelines.errors import EngineLoadError
from pipelines.speculation.draft_length.survival import NUM_CLASSES

BUSY_LIMIT = 0.1
"""Share of their time that the threads may have waited for a core in a calibration."""


@dataclass(frozen=True)
class EngineCosts:
    """Costs of an engine's steps.

    Attributes:
        rows: Numbers of rows, ascending.
        seconds: Minimum time of a step for each number of rows, without context or change of shape.
        seconds_per_position: Extra time per position of a row's context.
        reread_share: Share of that time that each further row of the same request takes again, 0 to 1.
        change_s: Extra time of a step whose shape differs from the previous one.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    seconds_per_position: float
    reread_share: float
    change_s: float


@dataclass(frozen=True)
class Calibration:
    """Measurements of a pair.

    Attributes:
        draft: Costs of the draft.
        target: Costs of the target.
        acceptance_rates: Acceptance rates by class of margin (``survival.MARGIN_EDGES``).
        margin_shares: Frequency of each class; they sum to 1.
        busy_share: Share of their time that the threads waited for a core while steps were timed, 0 to 1;
            None if the kernel does not count it.
        prompts_sha256: Hash of the prompts whose acceptance was measured; "" in files of earlier versions.
    """

    draft: EngineCosts
    target: EngineCosts
    acceptance_rates: tuple[float, ...]
    margin_shares: tuple[float, ...]
    busy_share: float | None
    prompts_sha256: str = ""

    @property
    def was_busy(self) -> bool:
        """Whether other programs disturbed the timing of the steps, so that it is an estimate."""
        return self.busy_share is not None and self.busy_share > BUSY_LIMIT

    def write(self, path: Path) -> None:
        """Write a JSON file atomically."""
        staging = path.with_suffix(".tmp")
        staging.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        staging.replace(path)

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read a file that ``write`` wrote.

        Raises:
            EngineLoadError: The file is missing or invalid.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            own = {each.name: document[each.name] for each in fields(cls) if each.name in document}
            draft, target = (EngineCosts(**_with_tuples(own.pop(role))) for role in ("draft", "target"))
            calibration = cls(draft, target, **_with_tuples(own))  # without the baseline, which others read
            _check(calibration)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the calibration of the pair cannot be used",
                values=f"{path}: {error!r}",
                limit="a file that python -m pipelines.bench.calibration wrote",
                remedy="run 'draftproof repository', which measures the pair again",
            ) from error
        return calibration


def _with_tuples(document: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}


def _check(calibration: Calibration) -> None:
    """Raise ValueError for impossible values, including NaN."""
    for role, costs in (("draft", calibration.draft), ("target", calibration.target)):
        rows, seconds = costs.rows, costs.seconds
        is_ascending = all(type(row) is int for row in rows) and sorted({*rows}) == list(rows)
        if len(rows) < 2 or rows[0] < 1 or not is_ascending:
            raise ValueError(f"{role}: rows={rows}: at least two whole numbers, ascending, from 1")
        if len(seconds) != len(rows) or not all(0 < value < math.inf for value in seconds):
            raise ValueError(f"{role}: seconds={seconds}: as many as rows, each above 0")
        for name in ("seconds_per_position", "change_s"):
            if not 0 <= getattr(costs, name) < math.inf:
                raise ValueError(f"{role}: {name}={getattr(costs, name)}: at least 0")
        if not 0 <= costs.reread_share <= 1:
            raise ValueError(f"{role}: reread_share={costs.reread_share}: from 0 to 1")
    if calibration.busy_share is not None and not 0 <= calibration.busy_share <= 1:
        raise ValueError(f"busy_share={calibration.busy_share}: from 0 to 1, or null")
    rates, shares = calibration.acceptance_rates, calibration.margin_shares
    for name, parts in (("acceptance_rates", rates), ("margin_shares", shares)):
        if len(parts) != NUM_CLASSES or not all(0 <= part <= 1 for part in parts):
            raise ValueError(f"{name}={parts}: {NUM_CLASSES}, one per class of margins, each from 0 to 1")
    if not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ValueError(f"margin_shares={shares}: their sum is 1, not {sum(shares)}")
