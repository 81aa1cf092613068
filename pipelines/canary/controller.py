"""Carries a rollout out: looks, decides, writes the decision down, then acts.

Each look writes thrice: everything that it found and decided into the state file, in one transaction; the
table of arms; and what the next phase does to the server. A controller that is killed in between goes on from
the first, and does the other two again. So a decision to roll back holds from the moment it is written, and
the weight falls before anything else happens; until it does, the lease in the table bounds the harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.analysis.pairing import NumPairs, count_pairs
from pipelines.canary.analysis.sections import analysis_section
from pipelines.canary.analysis.verdict import Analysis, analyse
from pipelines.canary.intake import observed
from pipelines.canary.phases import (
    ENDED,
    PREPARING,
    Decision,
    Facts,
    Judged,
    Outcome,
    Position,
    decide,
    num_awaited,
)
from pipelines.canary.record import Transition
from pipelines.canary.rollout import Progress, Rollout
from pipelines.canary.state import Store
from pipelines.canary.wanted_arms import wanted_arms, weights_at
from pipelines.canary.world import World
from pipelines.errors import CanaryError, DraftproofError

_Clock = Callable[[], float]


@dataclass(frozen=True)
class Look:
    """What one look found, for people.

    Attributes:
        rollout: Of the state file.
        position: Decided now.
        transition: If the phase changed.
        analysis: None without requests.
        requests: All that it is of.
        num_pairs: Of candidate and stable pair.
    """

    rollout: Rollout
    position: Position
    transition: Transition | None
    analysis: Analysis | None
    requests: list[ObservedRequest]
    num_pairs: NumPairs


class Controller:
    """One rollout's.

    Args:
        store: The state file; the caller holds its lock (``sole_controller``).
        rollout: Begun, perhaps by a controller that was killed.
        world: What it acts on.
        clock: Unix time.
    """

    def __init__(self, store: Store, rollout: Rollout, world: World, clock: _Clock = time.time) -> None:
        self._store = store
        self._rollout = rollout
        self._world = world
        self._clock = clock
        self._progress = store.progress(rollout)
        self._requests = store.requests(rollout)
        self._analysis: Analysis | None = None
        self._num_pairs = NumPairs()
        self._analysed = -1
        self._answered_at_s = clock()
        self._awaited, self._grew_at_s = ("", 0), clock()  # the phase, its pairs, and since when so many
        self._told, self._told_at_s = -1, 0.0  # generation, and when the router was told of it

    def run(self, show: Callable[[Look], None], sleep: Callable[[float], None] = time.sleep) -> Position:
        """Look until the rollout has ended.

        Args:
            show: Gets each look.
            sleep: Waits for so many seconds.

        Raises:
            DraftproofError: It cannot go on; the candidate gets no request any more, and the next controller
                goes on.
        """
        try:
            self._tell()
            while True:
                look = self.look()
                show(look)
                if look.position.phase in ENDED:
                    return look.position
                if look.transition is None:
                    sleep(self._rollout.plan.tick_s)
        except BaseException:
            self._let_lease_end()
            raise

    def look(self) -> Look:
        """Look once, and do what follows."""
        fresh, divergences, progress, broken = self._take_in()
        requests = [*self._requests, *fresh]
        if not broken:
            broken = self._analyse(requests, progress.complete_until_s)
        order = self._store.next_order(self._rollout)
        outcome = self._work()
        facts = Facts(
            now_s=self._clock(),  # after the work, which may take minutes
            order=order and order[1],
            outcome=outcome,
            judged=_judged(self._analysis),
            num_pairs=self._num_pairs.asked,
            num_replays=self._num_pairs.replayed,
            idle_s=self._idle_s(),
            down_s=self._down_s(),
            broken=broken,
        )
        decision = decide(self._progress.position, facts, self._rollout.plan)
        transition = self._transition(decision, facts.now_s)
        progress = replace(progress, position=decision.position)
        if transition is not None:
            progress = replace(
                progress,
                generation=progress.generation + 1,
                candidate_socket=str(decision.evidence.get("socket", progress.candidate_socket)),
                candidate_control_socket=str(
                    decision.evidence.get("control_socket", progress.candidate_control_socket)
                ),
                same_target=bool(decision.evidence.get("same_target", progress.same_target)),
            )
        self._store.advance(self._rollout, progress, fresh, divergences, transition, order and order[0])
        self._progress, self._requests = progress, requests
        self._tell()
        return Look(
            self._rollout, progress.position, transition, self._analysis, self._complete(), self._num_pairs
        )

    def _take_in(self) -> tuple[list[ObservedRequest], list[dict[str, object]], Progress, str]:
        """What the router noted since, and why there is nothing to judge by."""
        progress, rollout = self._progress, self._rollout
        if not progress.position.is_judged:
            return [], [], progress, ""
        try:
            found, offset = self._world.observations(progress.offset)
        except CanaryError as error:
            return [], [], progress, str(error)
        ours = [each for each in found if each.canary_id == rollout.canary_id]
        complete_until_s = max([progress.complete_until_s, *(each.oldest_open_at_s for each in ours)])
        return (
            [request for each in ours for request in observed(each, rollout.limits.runtime)],
            [vars(each.divergence) for each in ours if each.divergence is not None and not each.overridden],
            replace(progress, offset=offset, complete_until_s=complete_until_s),
            "",
        )

    def _analyse(self, requests: list[ObservedRequest], complete_until_s: float) -> str:
        """Judge again if there is more to judge by; why it cannot be done, else ""."""
        complete = [each for each in requests if each.arrived_at_s < complete_until_s]
        if len(complete) == self._analysed or not complete:
            return ""
        rollout = self._rollout
        try:
            self._analysis = analyse(complete, rollout.limits, rollout.plan.slo)
        except CanaryError as error:
            return str(error)
        self._num_pairs = count_pairs(complete)
        self._analysed = len(complete)
        return ""

    def _complete(self) -> list[ObservedRequest]:
        until_s = self._progress.complete_until_s
        return [each for each in self._requests if each.arrived_at_s < until_s]

    def _work(self) -> Outcome | None:
        """What the phase is there for; None where that is to wait."""
        position, plan = self._progress.position, self._rollout.plan
        since_s = self._clock() - position.since_s
        if position.phase in PREPARING:
            work = {
                "preflight": self._world.preflight,
                "loading": self._world.load,
                "cold_start": self._world.probe,
            }[position.phase]
            try:
                return work()
            except DraftproofError as error:
                return Outcome(False, f"{position.phase} failed: {error}")
        if position.phase == "rolling_back":
            return self._unload(since_s)
        if position.phase == "promoting" and since_s >= plan.watch_s:
            return self._keep()
        if position.phase == "settling":
            return self._settle()
        return None

    def _unload(self, since_s: float) -> Outcome | None:
        """Once the candidate answers nothing any more; one that cannot be unloaded is left where it is."""
        drain_s = self._rollout.plan.drain_s
        try:
            if since_s < drain_s and not self._is_drained():
                return None
            became = self._world.unload()
        except DraftproofError as error:
            if since_s < 2 * drain_s:
                return None
            return Outcome(True, f"it gets no requests, but could not be unloaded: {error}")
        return Outcome(True, became)

    def _is_drained(self) -> bool:
        """Whether every request is answered that arrived before the router was told."""
        found, _ = self._world.observations(self._progress.offset)
        return any(each.oldest_open_at_s > self._told_at_s for each in found)

    def _keep(self) -> Outcome:
        try:
            return self._world.keep()
        except DraftproofError as error:
            return Outcome(False, f"it could not be made permanent: {error}")

    def _settle(self) -> Outcome:
        try:
            return self._world.settle()
        except DraftproofError as error:
            return Outcome(True, f"it serves, but the pair before could not be taken away: {error}")

    def _idle_s(self) -> float:
        """Counts anew after a pause, and with the next controller."""
        now_s, position = self._clock(), self._progress.position
        awaited = position.phase, num_awaited(position, self._num_pairs.asked, self._num_pairs.replayed)
        if awaited != self._awaited or position.paused_in or not position.is_judged:
            self._awaited, self._grew_at_s = awaited, now_s
        return now_s - self._grew_at_s

    def _down_s(self) -> float:
        now_s, position = self._clock(), self._progress.position
        watched = position.is_judged or position.phase in ("paused", "promoting")
        if not watched or self._world.is_answering(self._progress.candidate_socket):
            self._answered_at_s = now_s
        return now_s - self._answered_at_s

    def _transition(self, decision: Decision, now_s: float) -> Transition | None:
        before = self._progress.position
        if decision.position.phase == before.phase:
            return None
        evidence = decision.evidence
        if before.is_judged and self._analysis is not None:
            evidence = {**analysis_section(self._analysis).document, **evidence}
        weights = weights_at(decision.position, self._rollout.plan)
        return Transition(now_s, before.phase, decision.position.phase, decision.reason, evidence, weights)

    def _tell(self) -> None:
        """The table of arms with a new lease; the same table as often as one likes."""
        self._world.write(wanted_arms(self._rollout, self._progress, self._clock()))
        if self._told != self._progress.generation:
            self._told, self._told_at_s = self._progress.generation, self._clock()

    def _let_lease_end(self) -> None:
        """Nobody watches from now on."""
        table = wanted_arms(self._rollout, self._progress, self._clock())
        self._world.write(replace(table, lease_until_s=0.0))


def _judged(analysis: Analysis | None) -> Judged | None:
    if analysis is None:
        return None
    named: dict[str, list[str]] = {}
    for each in analysis.judged:
        named.setdefault("held" if each.is_held else each.verdict, []).append(each.metric.name)
    words = ("fail",) if "fail" in named else ("held", "inconclusive")
    reason = "; ".join(f"{word}: {', '.join(named[word])}" for word in words if word in named)
    needs_replays = any(each.metric.by_replays and each.verdict != "pass" for each in analysis.judged)
    return Judged(analysis.verdict, analysis.action, reason, needs_replays)
