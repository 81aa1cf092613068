"""All that is known of one rollout: what the gates judge and the report shows, as one document."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.bench.slo import Slo
from pipelines.canary.analysis.limits import Limits, limits_from
from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.analysis.verdict import Action, Word, analyse
from pipelines.errors import CanaryError

FORMAT = 3

PROMOTING = ("promoting", "settling", "promoted")
"""Phases in which it is decided that the candidate stays."""

LEAVING = ("rolling_back", "rolled_back", "aborted")
"""Phases in which it is decided that the candidate goes."""

_DECIDED: tuple[tuple[tuple[str, ...], Word, Action], ...] = (
    (PROMOTING, "pass", "promote"),
    (LEAVING, "fail", "roll_back"),
)


@dataclass(frozen=True)
class Transition:
    """One change of the rollout's phase.

    Attributes:
        at_s: Unix time.
        from_phase: "" for the first.
        to_phase: As in ``RolloutRecord.phase``.
        reason: In a sentence.
        evidence: By what it was decided, ready for JSON. Its "verdict", where there is one, says what was
            shown of the candidate then: one that leaves need not have failed, and an operator may promote
            one that was not shown to be good enough.
        weights: Arm -> share of the requests from then on.
    """

    at_s: float
    from_phase: str
    to_phase: str
    reason: str
    evidence: dict[str, Any]
    weights: dict[str, float]


@dataclass(frozen=True)
class RolloutRecord:
    """One rollout up to now.

    Attributes:
        canary_id: Of the rollout.
        recipe_stable: Of the pair in service.
        recipe_candidate: Of the new one.
        began_at_s: Unix time.
        phase: As the controller names it: preflight, loading, cold_start, shadow, step/1 and so on,
            promoting, settling, promoted, rolling_back, rolled_back, paused, aborted.
        transitions: In the order of time.
        requests: Without holes (``ObservedRequest``), arrivals as unix time.
        divergences: Answers that differ, as far as they were kept
            (``routing.observation.Divergence``).
        limits: By which it is judged.
        slo: What a good request is.
    """

    canary_id: str
    recipe_stable: str
    recipe_candidate: str
    began_at_s: float
    phase: str
    transitions: tuple[Transition, ...]
    requests: tuple[ObservedRequest, ...]
    divergences: tuple[dict[str, Any], ...]
    limits: Limits
    slo: Slo

    def to_json(self) -> str:
        """One line that ``from_json`` reads."""
        return json.dumps({"format": FORMAT, **asdict(self)}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> RolloutRecord:
        """The record that ``to_json`` wrote.

        Raises:
            CanaryError: It is none, or of another format.
        """
        try:
            document = json.loads(text)
            if document.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            return cls(**{**document, **{key: read(document[key]) for key, read in _READ.items()}})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CanaryError(
                "a rollout's record cannot be read",
                values=f"{type(error).__name__}: {error}",
                limit=f"a record of format {FORMAT}",
                remedy="write it with this version of Draftproof",
            ) from None


@dataclass(frozen=True)
class Judgement:
    """What a rollout amounts to at one time.

    Attributes:
        verdict: What is shown of the candidate.
        action: What follows. ``promote`` only once that is decided: until then a candidate that passes goes
            on with its steps. ``inconclusive`` with ``roll_back``: it leaves without having failed.
        still_needed: Trials more until the verdict; None if no number would do.
        phase: Of the rollout.
        reason: In a sentence.
    """

    verdict: Word
    action: Action
    still_needed: int | None
    phase: str
    reason: str


def judgement(record: RolloutRecord) -> Judgement:
    """By what was decided already, else by the requests so far.

    Raises:
        CanaryError: As ``analyse``.
    """
    for phases, usual, follows in _DECIDED:
        if record.phase in phases:
            decision = _decision(record, phases)
            is_open = decision.evidence.get("verdict") == "inconclusive"
            return Judgement("inconclusive" if is_open else usual, follows, 0, record.phase, decision.reason)
    if is_waiting(record):
        return Judgement("inconclusive", "hold", None, record.phase, record.transitions[-1].reason)
    analysis = analyse(record.requests, record.limits, record.slo)
    words = {each.metric.name: "held" if each.is_held else each.verdict for each in analysis.judged}
    named = {
        word: [name for name in words if words[name] == word] for word in ("fail", "held", "inconclusive")
    }
    parts = [f"{word}: {', '.join(names)}" for word, names in named.items() if names]
    reason = "; ".join(parts) or "every loss is shown to be within its limit"
    action: Action = analysis.action
    if record.phase == "paused" and action != "roll_back":
        action = "hold"
    elif action == "promote":
        action = "go_on"
    return Judgement(analysis.verdict, action, analysis.still_needed, record.phase, reason)


def is_waiting(record: RolloutRecord) -> bool:
    """Whether a person is to say if the candidate may get requests: its probes were neither good nor bad."""
    latest = record.transitions[-1:]
    return record.phase == "paused" and any(each.from_phase == "cold_start" for each in latest)


def _decision(record: RolloutRecord, phases: tuple[str, ...]) -> Transition:
    """The transition that led into these phases."""
    for transition in reversed(record.transitions):
        if transition.to_phase in phases and transition.from_phase not in phases:
            return transition
    raise CanaryError(
        "a rollout's record does not say how its phase came about",
        values=f"phase={record.phase}, transitions: {len(record.transitions)}",
        limit=f"one into {' or '.join(phases)}",
        remedy="write the record with this version of Draftproof",
    )


_READ: dict[str, Callable[[Any], Any]] = {
    "transitions": lambda raw: tuple(Transition(**each) for each in raw),
    "requests": lambda raw: tuple(map(ObservedRequest.from_document, raw)),
    "divergences": tuple,
    "limits": lambda raw: limits_from(raw, Path("limits of the record")),
    "slo": lambda raw: Slo(**raw),
}
