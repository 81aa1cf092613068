"""The record of one rollout, which gates and reports are made from, and its judgement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipelines import configuration
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.judge.resources import Sample
from pipelines.canary.judge.verdict import Action, Analysis, analyse
from pipelines.program import Verdict
from pipelines.router.observation import Observation

PROMOTING = ("promoting", "settling", "retiring", "promoted")
"""Phases after the decision to promote the candidate."""

LEAVING = ("rolling_back", "rolled_back", "aborted")
"""Phases after the decision to roll the candidate back."""

_DECIDED: tuple[tuple[tuple[str, ...], Verdict, Action], ...] = (
    (PROMOTING, "pass", "promote"),
    (LEAVING, "fail", "roll_back"),
)


@configuration.strict
@dataclass(frozen=True)
class Transition:
    """One change of the rollout's phase.

    Attributes:
        at_s: Unix time.
        from_phase: Phase before; "" for the first transition.
        to_phase: Phase after, as in ``RolloutRecord.phase``.
        reason: Reason in a sentence.
        evidence: Figures behind the decision, ready for JSON. Its "verdict", if any, is that of the candidate
            at the time: a candidate can be rolled back without having failed, and an operator can promote one
            that has not passed.
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
    """Everything that is known about one rollout so far.

    Attributes:
        rollout: Its settings.
        phase: Phase as the controller names it: preflight, loading, shadow, step/1 and so on, promoting,
            settling, retiring, promoted, rolling_back, rolled_back, paused, aborted.
        transitions: Changes of phase in the order of time.
        requests: Requests without gaps (``analyse``).
        samples: Memory and CPU time of both pairs in the order of time.
    """

    rollout: Rollout
    phase: str
    transitions: tuple[Transition, ...]
    requests: tuple[Observation, ...]
    samples: tuple[Sample, ...]

    @property
    def divergences(self) -> list[dict[str, Any]]:
        """Answers that differ (``router.observation.Divergence``), ready for JSON."""
        return [vars(each.divergence) for each in self.requests if each.divergence is not None]

    def analyse(self) -> Analysis:
        """Judge the requests so far."""
        rollout = self.rollout
        return analyse(self.requests, rollout.limits, rollout.plan.slo, self.samples)


@dataclass(frozen=True)
class Judgement:
    """Judgement of a rollout at one time.

    Attributes:
        verdict: Verdict on the candidate.
        action: Action that follows. ``promote`` only once that is decided: a candidate that passes earlier
            continues with its steps (``go_on``). ``inconclusive`` with ``roll_back``: the candidate is rolled
            back without having failed.
        phase: Phase of the rollout.
        reason: Reason in a sentence.
    """

    verdict: Verdict
    action: Action
    phase: str
    reason: str


def judgement(record: RolloutRecord) -> Judgement:
    """Judge a rollout by its decision if there is one, else by the requests so far."""
    found, left_out = _judgement(record), record.rollout.limits.not_judged
    if found.verdict != "pass" or not left_out:
        return found
    return replace(found, reason=f"{found.reason}; not judged: {', '.join(left_out)}")


def _judgement(record: RolloutRecord) -> Judgement:
    for phases, usual, follows in _DECIDED:
        if record.phase in phases:
            decision = _decision(record, phases)
            is_open = decision.evidence.get("verdict") == "inconclusive"
            return Judgement("inconclusive" if is_open else usual, follows, record.phase, decision.reason)
    analysis = record.analyse()
    reason = analysis.reason or "every metric is within its limit"
    action: Action = analysis.action
    if record.phase == "paused" and action != "roll_back":
        action = "hold"
    elif action == "promote":
        action = "go_on"
    return Judgement(analysis.verdict, action, record.phase, reason)


def _decision(record: RolloutRecord, phases: tuple[str, ...]) -> Transition:
    """Return the transition into these phases."""
    return next(
        each for each in record.transitions if each.to_phase in phases and each.from_phase not in phases
    )
