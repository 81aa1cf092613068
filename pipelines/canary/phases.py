"""Which phase follows from what is known; pure: no clock, no file, no server.

::

    preflight > loading > cold_start > shadow > step/1 > ... > promoting > settling > promoted
        |          |         |  |     ^ |  ^     |  ^             |
        |          |         |  v     | v  |     v  |             |
        |          |         | paused-+ paused  paused            |
        v          v         v  v       v        v                v
    rolled_back  <-------------------- rolling_back ----------> aborted (by order)

A candidate is promoted only if every loss passes, or by order. One that is not shown to be good enough leaves
as well as one that is shown to be bad; the evidence says which. One whose probes are neither good nor bad
waits for a person before it gets a request. A step in which nothing is repeated goes back to the shadow if
replays that were under way when it began leave open again what those before them had shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipelines.canary.analysis.verdict import Action, Word
from pipelines.canary.plan import Plan, Step

Order = Literal["pause", "resume", "promote", "abort"]

PREPARING = ("preflight", "loading", "cold_start")
"""Phases in which the candidate gets no request."""

ENDED = ("promoted", "rolled_back", "aborted")


@dataclass(frozen=True)
class Position:
    """Where a rollout stands.

    Attributes:
        phase: As the diagram names it.
        since_s: Unix time at which it began.
        num_pairs_before: Pairs then, of the kind that the phase waits for (``num_awaited``).
        paused_in: The phase that a pause interrupted or, after ``cold_start``, put off the next one; else "".
        held_since_s: Since when a loss is above what may pass; None if none is.
        is_abort: It leaves by order.
        pause_reason: What a person is to decide on; "" where an operator paused it.
    """

    phase: str
    since_s: float
    num_pairs_before: int = 0
    paused_in: str = ""
    held_since_s: float | None = None
    is_abort: bool = False
    pause_reason: str = ""

    @property
    def serving(self) -> str:
        """The phase by which requests go: while paused, the one that was interrupted."""
        return self.paused_in or self.phase

    @property
    def is_judged(self) -> bool:
        """Whether the candidate answers or repeats requests, so that evidence grows."""
        return self.serving == "shadow" or self.serving.startswith("step/")

    @property
    def is_leaving(self) -> bool:
        """Whether it is decided that the candidate goes."""
        return self.phase in ("rolling_back", "rolled_back", "aborted")

    @property
    def is_stable(self) -> bool:
        """Whether the candidate is the stable pair, for good: nobody stands behind it any more."""
        return self.phase in ("settling", "promoted")


@dataclass(frozen=True)
class Outcome:
    """What the work of a phase came to.

    Attributes:
        is_good: Whether the phase after it may begin.
        reason: In a sentence.
        evidence: Ready for JSON.
        is_held: Whether it is for a person to say, since it is not good and not bad enough to leave.
    """

    is_good: bool
    reason: str
    evidence: dict[str, Any] = field(default_factory=dict)
    is_held: bool = False


@dataclass(frozen=True)
class Judged:
    """What the requests so far amount to.

    Attributes:
        verdict: Of the analysis.
        action: Of the analysis.
        reason: The losses behind it, in a sentence.
        needs_replays: Whether a loss that replays alone tell of, as that of tokens, has not passed.
    """

    verdict: Word
    action: Action
    reason: str
    needs_replays: bool = True


@dataclass(frozen=True)
class Facts:
    """All that a decision is made of.

    Attributes:
        now_s: Unix time.
        order: What an operator asked for; None for nothing.
        outcome: Of the phase's work; None while it is not done, or where there is none.
        judged: None without requests.
        num_pairs: Requests that clients had answered by the candidate so far, beside the stable pair's.
        num_replays: Replays so far, beside what they repeat.
        idle_s: Seconds since there was one more of those that the phase waits for (``num_awaited``).
        down_s: Seconds for which nobody has answered at the candidate's socket; 0 if somebody does.
        broken: Why there is no evidence to judge by; "" if there is.
    """

    now_s: float
    order: Order | None = None
    outcome: Outcome | None = None
    judged: Judged | None = None
    num_pairs: int = 0
    num_replays: int = 0
    idle_s: float = 0.0
    down_s: float = 0.0
    broken: str = ""


@dataclass(frozen=True)
class Decision:
    """What follows.

    Attributes:
        position: From now on.
        reason: Of a new phase, in a sentence; "" if the phase stays.
        evidence: By what it was decided.
    """

    position: Position
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


def decide(position: Position, facts: Facts, plan: Plan) -> Decision:
    """The next position; the same one where nothing follows.

    Args:
        position: Now.
        facts: Now.
        plan: Of the rollout.
    """
    if position.phase in ENDED:
        return Decision(position)
    if position.phase == "rolling_back":
        return _leave_behind(position, facts)
    if position.phase == "settling":
        return _settle(position, facts)
    if facts.order == "abort":
        return _roll_back(position, facts, "an operator aborted it", is_abort=True)
    if position.phase in PREPARING:
        return _prepare(position, facts)
    if facts.down_s > plan.down_after_s:
        reason = f"nobody has answered at its socket for {facts.down_s:.1f} s"
        return _roll_back(position, facts, reason, "fail", {"down_s": facts.down_s})
    if position.phase == "promoting":
        return _keep(position, facts)
    return _judge(position, facts, plan)


def step_of(position: Position, plan: Plan) -> Step | None:
    """The step of weights that holds, while paused too; None in other phases."""
    name, _, number = position.serving.partition("/")
    return plan.steps[int(number) - 1] if name == "step" else None


def num_awaited(position: Position, num_pairs: int, num_replays: int) -> int:
    """Pairs so far of the kind that a phase waits for: replays in the shadow, clients' requests in a step."""
    return num_replays if position.serving == "shadow" else num_pairs


def _prepare(position: Position, facts: Facts) -> Decision:
    outcome = facts.outcome
    if outcome is None:
        return Decision(position)
    if outcome.is_held:
        waiting = Position("paused", facts.now_s, paused_in=position.phase, pause_reason=outcome.reason)
        return Decision(waiting, outcome.reason, {**outcome.evidence, "verdict": "inconclusive"})
    if outcome.is_good:
        return _go(position, facts, _after(position.phase), outcome.reason, outcome.evidence)
    if position.phase == "preflight":  # nothing is there to be unloaded
        evidence = {**outcome.evidence, "verdict": "fail"}
        return _go(position, facts, "rolled_back", outcome.reason, evidence)
    return _roll_back(position, facts, outcome.reason, "fail", outcome.evidence)


def _after(preparing: str) -> str:
    """The phase that follows one in which the candidate gets no request."""
    return (*PREPARING, "shadow")[PREPARING.index(preparing) + 1]


def _leave_behind(position: Position, facts: Facts) -> Decision:
    if facts.outcome is None:
        return Decision(position)
    ended = "aborted" if position.is_abort else "rolled_back"
    return _go(position, facts, ended, facts.outcome.reason, facts.outcome.evidence)


def _keep(position: Position, facts: Facts) -> Decision:
    if facts.outcome is None:
        return Decision(position)
    if not facts.outcome.is_good:
        return _roll_back(position, facts, facts.outcome.reason)
    return _go(position, facts, "settling", facts.outcome.reason, facts.outcome.evidence)


def _settle(position: Position, facts: Facts) -> Decision:
    if facts.outcome is None:
        return Decision(position)
    return _go(position, facts, "promoted", facts.outcome.reason, facts.outcome.evidence)


def _judge(position: Position, facts: Facts, plan: Plan) -> Decision:
    judged = facts.judged
    if facts.broken:
        return _roll_back(position, facts, f"there is no evidence to judge by: {facts.broken}")
    if judged is not None and judged.verdict == "fail":
        return _roll_back(position, facts, judged.reason, "fail")
    if facts.order == "promote":
        return _go(position, facts, "promoting", "an operator promoted it", _evidence(facts))
    is_held = judged is not None and judged.action == "hold"
    since_s = (facts.now_s if position.held_since_s is None else position.held_since_s) if is_held else None
    position = replace(position, held_since_s=since_s)
    if facts.order == "pause" and not position.paused_in:
        paused = replace(position, phase="paused", paused_in=position.phase)
        return Decision(paused, "an operator paused it", _evidence(facts))
    if facts.order == "resume" and position.paused_in in PREPARING:  # its work is done
        return _go(position, facts, _after(position.paused_in), "an operator let it go on", _evidence(facts))
    if facts.order == "resume" and position.paused_in:
        resumed = replace(position, phase=position.paused_in, paused_in="")
        return Decision(resumed, "an operator let it go on", _evidence(facts))
    if position.paused_in:
        return Decision(position)
    if since_s is not None and facts.now_s - since_s > plan.hold_s and judged is not None:
        return _roll_back(position, facts, f"not shown to be good enough: {judged.reason}")
    if facts.num_pairs >= plan.max_pairs and (judged is None or judged.verdict != "pass"):
        return _roll_back(position, facts, f"no verdict after {facts.num_pairs} pairs")
    if facts.idle_s > plan.idle_s:
        return _roll_back(position, facts, f"nothing more to judge it by for {facts.idle_s:.0f} s")
    return _advance(position, facts, plan, is_held)


def _advance(position: Position, facts: Facts, plan: Plan, is_held: bool) -> Decision:
    step = step_of(position, plan)
    needed = step or plan.shadow
    needs_replays = facts.judged is None or facts.judged.needs_replays
    if step is not None and needs_replays and not plan.replayed_share(step.weight):
        reason = "its last replays leave open again what those before had shown"
        return _go(position, facts, "shadow", reason, _evidence(facts))
    num_pairs = num_awaited(position, facts.num_pairs, facts.num_replays) - position.num_pairs_before
    if is_held or num_pairs < needed.min_pairs or facts.now_s - position.since_s < needed.bake_s:
        return Decision(position)
    number = 1 if step is None else plan.steps.index(step) + 2
    if number <= len(plan.steps):
        if needs_replays and not plan.replayed_share(plan.steps[number - 1].weight):
            return _wait_for_replays(position, facts, plan)
        reason = f"{num_pairs} pairs and no loss above its limit"
        return _go(position, facts, f"step/{number}", reason, _evidence(facts))
    if facts.judged is not None and facts.judged.verdict == "pass":
        return _go(position, facts, "promoting", "every loss is within its limit", _evidence(facts))
    return Decision(position)


def _wait_for_replays(position: Position, facts: Facts, plan: Plan) -> Decision:
    """There are none in the step that would follow; as many as the plan has pairs have to be enough."""
    if facts.num_replays < plan.max_pairs:
        return Decision(position)
    found = f": {facts.judged.reason}" if facts.judged else ""
    return _roll_back(position, facts, f"not shown by {facts.num_replays} replays{found}")


def _roll_back(
    position: Position,
    facts: Facts,
    reason: str,
    verdict: Word = "inconclusive",
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
    if facts.judged is not None:
        found["verdict"] = facts.judged.verdict
    return found
