"""What is known of a pair before it serves: the costs of its steps and how margins tell acceptance."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.errors import EngineLoadError


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
            EngineLoadError: The file is missing or of another form.
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
            return cls(draft, target, tuple(document["acceptance_rates"]), tuple(document["margin_shares"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineLoadError(
                "the calibration of the pair cannot be read",
                values=f"{path}: {error!r}",
                limit="a file that python -m pipelines.calibration wrote",
                remedy="run 'make engines'",
            ) from error
