"""Answers for other rollout tools: the judgement of a rollout, and which of their gates are open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.canary.report.record import Judgement, RolloutRecord, judgement

_IS_OPEN: dict[str, Callable[[Judgement], bool]] = {
    "rollout": lambda found: found.action != "roll_back",
    "confirm-traffic-increase": lambda found: found.action in ("go_on", "promote"),
    "confirm-promotion": lambda found: found.action == "promote",
    "rollback": lambda found: found.action == "roll_back",
}
"""Type of a Flagger webhook -> whether it succeeds. If ``rollback`` succeeds, Flagger rolls back."""

HOOKS = tuple(_IS_OPEN)


@dataclass(frozen=True)
class Answer:
    """Answer of a gate.

    Attributes:
        canary_id: Name of the rollout; "" if there is none of the candidate.
        candidate: Recipe of the candidate.
        judgement: Judgement of the rollout.
    """

    canary_id: str
    candidate: str
    judgement: Judgement

    def opens(self, hook: str) -> bool:
        """Return whether a webhook of this type (one of ``HOOKS``) succeeds."""
        return _IS_OPEN[hook](self.judgement)

    @property
    def document(self) -> dict[str, Any]:
        """The answer, ready for JSON."""
        return {"canary_id": self.canary_id, "candidate": self.candidate, **asdict(self.judgement)}


def answer(record: RolloutRecord, candidate: str = "") -> Answer:
    """Judge a rollout for another tool.

    Args:
        record: Record of the latest rollout.
        candidate: Recipe that the tool asks about; "" for any. The verdict on another recipe does not apply,
            such as that of the previous rollout before the next one has started.

    Raises:
        CanaryError: As ``judgement``.
    """
    if candidate and candidate != record.recipe_candidate:
        reason = f"no rollout of {candidate}: the latest is of {record.recipe_candidate}"
        return Answer("", candidate, Judgement("inconclusive", "go_on", None, "", reason))
    return Answer(record.canary_id, record.recipe_candidate, judgement(record))
