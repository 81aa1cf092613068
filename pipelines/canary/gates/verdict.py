"""What other tools are told of a rollout, and which of their gates stand open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.canary.record import Judgement, RolloutRecord, judgement

_IS_OPEN: dict[str, Callable[[Judgement], bool]] = {
    "rollout": lambda found: found.action != "roll_back",
    "confirm-traffic-increase": lambda found: found.action in ("go_on", "promote"),
    "confirm-promotion": lambda found: found.action == "promote",
    "rollback": lambda found: found.action == "roll_back",
}
"""Type of a Flagger webhook -> whether it succeeds. A success of ``rollback`` makes Flagger roll back."""

HOOKS = tuple(_IS_OPEN)


@dataclass(frozen=True)
class Answer:
    """What a gate says.

    Attributes:
        canary_id: Of the rollout that is meant; "" if there is none.
        candidate: Its recipe.
        judgement: Of it.
    """

    canary_id: str
    candidate: str
    judgement: Judgement

    def opens(self, hook: str) -> bool:
        """Whether a webhook of this type (one of ``HOOKS``) succeeds."""
        return _IS_OPEN[hook](self.judgement)

    @property
    def document(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {"canary_id": self.canary_id, "candidate": self.candidate, **asdict(self.judgement)}


def answer(record: RolloutRecord, candidate: str = "") -> Answer:
    """Judge a rollout for another tool.

    Args:
        record: Of the latest rollout.
        candidate: Recipe that the tool asks about, "" for whichever. The verdict on another one says
            nothing of it, such as that of the last rollout while the next has not begun.

    Raises:
        CanaryError: As ``judgement``.
    """
    if candidate and candidate != record.recipe_candidate:
        reason = f"no rollout of {candidate}: the latest is of {record.recipe_candidate}"
        return Answer("", candidate, Judgement("inconclusive", "go_on", None, "", reason))
    return Answer(record.canary_id, record.recipe_candidate, judgement(record))
