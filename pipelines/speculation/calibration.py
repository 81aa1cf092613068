"""What is known of a pair before it serves: the costs of its steps and how margins tell acceptance."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.errors import EngineLoadError
from pipelines.speculation.survival import NUM_CLASSES


@dataclass(frozen=True)
class EngineCosts:
    """Times of an engine's steps.

    Attributes:
        rows: Numbers of rows, ascending.
        seconds: Least time of a step with so many, of the same shape as the one before, without context.
        seconds_per_position: What a position of context adds, for each row that reads it.
        change_s: What a change of shape adds.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    seconds_per_position: float
    change_s: float


@dataclass(frozen=True)
class Calibration:
    """A measured pair.

    Attributes:
        draft: Costs of the draft.
        target: Costs of the target.
        acceptance_rates: Of draft tokens, by class of margin (``survival.MARGIN_EDGES``).
        margin_shares: How often each class occurred; they sum to 1.
    """

    draft: EngineCosts
    target: EngineCosts
    acceptance_rates: tuple[float, ...]
    margin_shares: tuple[float, ...]

    def write(self, path: Path) -> None:
        """Write as JSON, as a whole or not at all."""
        staging = path.with_suffix(".tmp")
        staging.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        staging.replace(path)

    @classmethod
    def read(cls, path: Path) -> Calibration:
        """Read what ``write`` wrote.

        Raises:
            EngineLoadError: The file is missing, of another form, or says what cannot be.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            draft, target = (
                EngineCosts(
                    tuple(part["rows"]),
                    tuple(part["seconds"]),
                    float(part["seconds_per_position"]),
                    float(part["change_s"]),
                )
                for part in (document["draft"], document["target"])
            )
            rates, shares = tuple(document["acceptance_rates"]), tuple(document["margin_shares"])
            calibration = cls(draft, target, rates, shares)
            _check(calibration)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the calibration of the pair cannot be used",
                values=f"{path}: {error!r}",
                limit="a file that python -m pipelines.calibration wrote",
                remedy="run 'make repository', which measures the pair anew",
            ) from error
        return calibration


def _check(calibration: Calibration) -> None:
    """Raise ValueError for what no measurement gives; NaN passes no comparison."""
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
    rates, shares = calibration.acceptance_rates, calibration.margin_shares
    for name, parts in (("acceptance_rates", rates), ("margin_shares", shares)):
        if len(parts) != NUM_CLASSES or not all(0 <= part <= 1 for part in parts):
            raise ValueError(f"{name}={parts}: {NUM_CLASSES}, one per class of margins, each from 0 to 1")
    if not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ValueError(f"margin_shares={shares}: their sum is 1, not {sum(shares)}")
