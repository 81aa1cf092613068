"""Decide the next phase of a rollout; pure functions without clock, files or server.

::

    preflight > loading > shadow > step/1 > ... > promoting > settling > retiring > promoted
        |          |       |  ^     |  ^             |
        |          |       v  |     v  |             |
        |          |      paused   paused            |
        v          v       v        v                v
    rolled_back  <------- rolling_back ----------> aborted (by order)

A candidate is promoted only if every metric passes, or by order. It is rolled back if a metric fails, and
also if the evidence stays inconclusive; the stored verdict says which. A step without replays returns to
the shadow phase if replays that were still running when it began made a metric inconclusive again.

While ``promoting`` it answers all requests and can still go back, ``settling`` makes it the stable one, and
``retiring`` ends what is not needed any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipelines.canary.controller.plan import Plan, Step
from pipelines.canary.controller.world import PhaseResult
from pipelines.canary.judge.verdict import Analysis
from pipelines.program import Verdict

Order = Literal["pause", "resume", "promote", "abort"]

PREPARING = ("preflight", "loading")
"""Phases in which the candidate gets no requests of clients."""

ENDED = ("promoted", "rolled_back", "aborted")


@dataclass(frozen=True)
class Position:
    """The phase of a rollout with its details.

    Attributes:
        phase: Phase as the diagram names it.
        since_s: Unix time at which the phase began.
        num_pairs_before: Number of awaited pairs (``num_awaited``) when the phase began.
        paused_in: Phase that the pause interrupted; "" if not paused.
        held_since_s: Since when a metric has needed review; None if none does.
        is_abort: Whether the candidate is rolled back by order.
    """

    phase: str
    since_s: float
    num_pairs_before: int = 0
    paused_in: str = ""
    held_since_s: float | None = None
    is_abort: bool = False

    @property
    def serving(self) -> str:
        """Phase that determines the weights: while paused, the interrupted one."""
        return self.paused_in or self.phase

    @property
    def is_judged(self) -> bool:
        """Whether the candidate answers requests or replays, so that there is new evidence."""
        return self.serving == "shadow" or self.serving.startswith("step/")

    @property
    def is_leaving(self) -> bool:
        """Whether the candidate is being rolled back or was."""
        return self.phase in ("rolling_back", "rolled_back", "aborted")

    @property
    def is_final(self) -> bool:
        """Whether the candidate stays, so that it can no longer be rolled back."""
        return self.phase == "settling" or self.is_stable

    @property
    def is_stable(self) -> bool:
        """Whether the candidate has replaced the stable pair."""
        return self.phase in ("retiring", "promoted")


@dataclass(frozen=True)
class Facts:
    """Inputs of a decision.

    Attributes:
        now_s: Unix time.
        order: Order of an operator; None if there is none.
        result: Result of the phase's work; None while it is not done, or if the phase has none.
        analysis: Analysis of the requests so far; None without requests.
        num_pairs: Requests of clients so far that the candidate answered and that have a counterpart of the
            stable pair.
        num_replays: Replays so far.
        idle_s: Seconds since the latest awaited pair (``num_awaited``).
        down_s: Seconds for which the candidate's socket has refused connections; 0 if it accepts them.
        has_restarted: Whether the candidate's process has ended and another one has taken its place.
        broken: Why the evidence cannot be read or judged; "" if it can.
        unmeasured: Why memory and CPU time have not been measured for ``idle_s``; "" if they were.
    """

    now_s: float
    order: Order | None = None
    result: PhaseResult | None = None
    analysis: Analysis | None = None
    num_pairs: int = 0
    num_replays: int = 0
    idle_s: float = 0.0
    down_s: float = 0.0
    has_restarted: bool = False
    broken: str = ""
    unmeasured: str = ""


@dataclass(frozen=True)
class Decision:
    """Result of ``decide``.

    Attributes:
        position: New position.
        reason: Reason for a new phase, in a sentence; "" if the phase stays.
        evidence: Figures behind the decision.
    """

    position: Position
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


def decide(position: Position, facts: Facts, plan: Plan) -> Decision:
    """Decide the next position, which may be the current one.

    Args:
        position: Current position.
        facts: Current facts.
        plan: Plan of the rollout.
    """
    if position.phase in ENDED:
        return Decision(position)
    if position.phase == "rolling_back":
        return _finish(position, facts, "aborted" if position.is_abort else "rolled_back")
    if position.phase == "settling":
        return _finish(position, facts, "retiring")
    if position.phase == "retiring":
        return _finish(position, facts, "promoted")
    if facts.order == "abort":
        return _roll_back(position, facts, "an operator aborted it", is_abort=True)
    if position.phase in PREPARING:
        return _prepare(position, facts)
    if facts.down_s > plan.down_after_s:
        reason = f"its socket has refused connections for {facts.down_s:.1f} s"
        return _roll_back(position, facts, reason, "fail", {"down_s": facts.down_s})
    if facts.has_restarted:
        return _roll_back(position, facts, "its process ended and was replaced", "fail")
    if position.phase == "promoting":
        if facts.now_s - position.since_s < plan.watch_s:
            return Decision(position)
        return _go(position, facts, "settling", f"it has answered all requests for {plan.watch_s:g} s", {})
    return _judge(position, facts, plan)


def step_of(position: Position, plan: Plan) -> Step | None:
    """Return the current step, also while paused in it; None in other phases."""
    name, _, number = position.serving.partition("/")
    return plan.steps[int(number) - 1] if name == "step" else None


def num_awaited(position: Position, num_pairs: int, num_replays: int) -> int:
    """Return how many pairs a phase has that it waits for: replays in shadow, clients' requests in a step."""
    return num_replays if position.serving == "shadow" else num_pairs


def _prepare(position: Position, facts: Facts) -> Decision:
    result = facts.result
    if result is None:
        return Decision(position)
    if result.is_good:
        following = "loading" if position.phase == "preflight" else "shadow"
        return _go(position, facts, following, result.reason, result.evidence)
    if position.phase == "preflight":  # nothing was loaded
        evidence = {**result.evidence, "verdict": "fail"}
        return _go(position, facts, "rolled_back", result.reason, evidence)
    return _roll_back(position, facts, result.reason, "fail", result.evidence)


def _finish(position: Position, facts: Facts, following: str) -> Decision:
    """Go to the following phase once the work of this one is done."""
    if facts.result is None:
        return Decision(position)
    return _go(position, facts, following, facts.result.reason, facts.result.evidence)


def _judge(position: Position, facts: Facts, plan: Plan) -> Decision:
    analysis = facts.analysis
    if facts.broken:
        return _roll_back(position, facts, f"the evidence cannot be judged: {facts.broken}")
    if analysis is not None and analysis.verdict == "fail":
        return _roll_back(position, facts, analysis.reason, "fail")
    if facts.order == "promote":
        return _go(position, facts, "promoting", "an operator promoted it", _evidence(facts))
    needs_review = analysis is not None and analysis.action == "hold"
    since_s = (
        (facts.now_s if position.held_since_s is None else position.held_since_s) if needs_review else None
    )
    position = replace(position, held_since_s=since_s)
    if facts.order == "pause" and not position.paused_in:
        paused = replace(position, phase="paused", paused_in=position.phase)
        return Decision(paused, "an operator paused it", _evidence(facts))
    if facts.order == "resume" and position.paused_in:
        resumed = replace(position, phase=position.paused_in, paused_in="")
        return Decision(resumed, "an operator resumed it", _evidence(facts))
    if position.paused_in:
        return Decision(position)
    if since_s is not None and facts.now_s - since_s > plan.hold_s and analysis is not None:
        return _roll_back(position, facts, f"above its pass limit for too long: {analysis.reason}")
    if facts.num_pairs >= plan.max_pairs and (analysis is None or analysis.verdict != "pass"):
        return _roll_back(position, facts, f"no verdict after {facts.num_pairs} pairs{_found(facts)}")
    if facts.unmeasured:
        return _roll_back(position, facts, f"memory and CPU time are unknown: {facts.unmeasured}")
    if facts.idle_s > plan.idle_s:
        reason = f"no new evidence for {facts.idle_s:.0f} s{_found(facts)}"
        return _roll_back(position, facts, reason)
    return _advance(position, facts, plan, needs_review)


def _advance(position: Position, facts: Facts, plan: Plan, needs_review: bool) -> Decision:
    step = step_of(position, plan)
    needed = step or plan.shadow
    needs_replays = facts.analysis is None or facts.analysis.needs_replays
    if step is not None and needs_replays and not plan.replayed_share(step.weight):
        reason = "late replays made a metric inconclusive"
        return _go(position, facts, "shadow", reason, _evidence(facts))
    num_pairs = num_awaited(position, facts.num_pairs, facts.num_replays) - position.num_pairs_before
    if needs_review or num_pairs < needed.min_pairs or facts.now_s - position.since_s < needed.bake_s:
        return Decision(position)
    if step is None and facts.analysis is not None and facts.analysis.lacks_answers:
        return _wait_for_replays(position, facts, plan)
    number = 1 if step is None else plan.steps.index(step) + 2
    if number <= len(plan.steps):
        if needs_replays and not plan.replayed_share(plan.steps[number - 1].weight):
            return _wait_for_replays(position, facts, plan)
        reason = f"{num_pairs} pairs and no metric above its limit"
        return _go(position, facts, f"step/{number}", reason, _evidence(facts))
    if facts.analysis is not None and facts.analysis.verdict == "pass":
        return _go(position, facts, "promoting", "every metric is within its limit", _evidence(facts))
    return Decision(position)


def _wait_for_replays(position: Position, facts: Facts, plan: Plan) -> Decision:
    """Stay in a phase with replays because they must tell more first, up to ``max_pairs`` of them."""
    if facts.num_replays < plan.max_pairs:
        return Decision(position)
    return _roll_back(position, facts, f"no verdict after {facts.num_replays} replays{_found(facts)}")


def _found(facts: Facts) -> str:
    """Return the judgement as the end of a reason."""
    return f": {facts.analysis.reason}" if facts.analysis else ""


def _roll_back(
    position: Position,
    facts: Facts,
    reason: str,
    verdict: Verdict = "inconclusive",
    evidence: dict[str, Any] | None = None,
    is_abort: bool = False,
) -> Decision:
    known = {**_evidence(facts), **(evidence or {}), "verdict": verdict}
    decision = _go(position, facts, "rolling_back", reason, known)
    return replace(decision, position=replace(decision.position, is_abort=is_abort))


def _go(position: Position, facts: Facts, phase: str, reason: str, evidence: dict[str, Any]) -> Decision:
    following = Position(phase, facts.now_s, is_abort=position.is_abort)
    num_pairs = num_awaited(following, facts.num_pairs, facts.num_replays)
    return Decision(replace(following, num_pairs_before=num_pairs), reason, evidence)


def _evidence(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {"num_pairs": facts.num_pairs, "num_replays": facts.num_replays}
    if facts.analysis is not None:
        found["verdict"] = facts.analysis.verdict
    return found
