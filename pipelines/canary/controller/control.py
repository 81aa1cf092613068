"""The controller of a rollout: it observes, decides, stores the decision and then acts.

Each cycle first writes what it found and decided to the state file, in one transaction; then the table of
arms; then the work of the next phase changes the server. If a controller is killed in between, the next one
reads the state file and repeats the other two. So a decision to roll back is final once it is written, and
the candidate's weight falls before anything else happens; until then the lease in the table limits the harm.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.canary.controller.evidence import Evidence
from pipelines.canary.controller.phases import (
    ENDED,
    PREPARING,
    Decision,
    Facts,
    Position,
    decide,
    num_awaited,
)
from pipelines.canary.controller.rollout import Progress, Rollout, arm_table, weights_at
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import PhaseResult, World
from pipelines.canary.report.record import Transition
from pipelines.canary.report.rollout_report import analysis_document
from pipelines.errors import DraftproofError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cycle:
    """Findings and decision of one cycle, for people.

    Attributes:
        position: New position.
        transition: Change of phase; None if the phase stays.
    """

    position: Position
    transition: Transition | None


class Controller:
    """Runs one rollout to completion.

    Args:
        store: State file; the caller holds its lock (``sole_controller``).
        rollout: Rollout to run or to resume.
        world: Server and router that it acts on.
        clock: Returns the unix time.
    """

    def __init__(
        self, store: Store, rollout: Rollout, world: World, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._rollout = rollout
        self._world = world
        self._clock = clock
        self._progress = store.progress(rollout)
        self._evidence = Evidence(rollout, store.requests(rollout), store.samples(rollout), clock)
        self._awaited, self._grew_at_s = ("", 0), clock()  # phase, its pairs, and when the latest came
        self._written, self._written_at_s = -1, 0.0  # generation, and when the router got it
        self._answered_at_s: float | None = None  # when the candidate's process last accepted a connection

    def run(self, show: Callable[[Cycle], None], sleep: Callable[[float], None] = time.sleep) -> Position:
        """Run cycles until the rollout has ended.

        Args:
            show: Called with each cycle.
            sleep: Waits for a number of seconds.

        Raises:
            DraftproofError: The rollout cannot continue. The candidate gets no more requests; another
                controller can resume the rollout.
        """
        try:
            self._write_arms()
            while True:
                cycle = self.run_cycle()
                show(cycle)
                if cycle.position.phase in ENDED:
                    return cycle.position
                if cycle.transition is None:
                    sleep(self._rollout.plan.tick_s)
        except BaseException:
            table = arm_table(self._rollout, self._progress, self._clock())
            if not self._progress.position.is_final:
                table = replace(table, lease_until_s=0.0)  # nobody watches the candidate from now on
            self._world.write(table)
            raise

    def run_cycle(self) -> Cycle:
        """Collect evidence, do the phase's work, decide, store the decision, and write the table of arms."""
        order = self._store.next_order(self._rollout)
        found, progress = self._evidence.collect(self._world, self._progress)
        result = self._work(progress)
        progress, down_s, has_restarted = self._watch(progress)
        evidence, plan = self._evidence, self._rollout.plan
        facts = Facts(
            now_s=self._clock(),  # after the work, which may take minutes
            order=order and order[1],
            result=result,
            analysis=evidence.analysis,
            num_pairs=evidence.num_pairs,
            num_replays=evidence.num_replays,
            idle_s=self._measure_idle_s(),
            down_s=down_s,
            has_restarted=has_restarted,
            broken=evidence.broken,
            unmeasured=evidence.unmeasured_for(plan.idle_s),
        )
        decision = decide(progress.position, facts, plan)
        transition = self._transition(decision, facts.now_s)
        progress = _after(progress, decision, transition)
        self._store.advance(self._rollout, progress, found, transition, order and order[0])
        self._progress = progress
        self._write_arms()
        return Cycle(progress.position, transition)

    def _work(self, progress: Progress) -> PhaseResult | None:
        """Do the work of the phase; returns None if the phase has none or its work is not done."""
        position, world = progress.position, self._world
        since_s = self._clock() - position.since_s
        if position.phase in PREPARING:
            try:
                return world.preflight() if position.phase == "preflight" else world.load()
            except DraftproofError as error:
                return PhaseResult(False, f"{position.phase} failed: {error}")
        if position.phase in ("rolling_back", "retiring"):
            return self._unload(since_s)
        if position.phase == "settling":
            try:
                return world.settle()
            except DraftproofError as error:  # the candidate answers all requests until it works
                _LOG.warning("trying again: %s", error)
        return None

    def _unload(self, since_s: float) -> PhaseResult | None:
        """End the second server once its requests have finished; leave it if that keeps failing."""
        drain_s = self._rollout.plan.drain_s
        try:
            if since_s < drain_s and not self._is_drained():
                return None
            return PhaseResult(True, self._world.unload())
        except DraftproofError as error:
            if since_s < 2 * drain_s:
                return None
            return PhaseResult(True, f"the second server gets no requests, but could not be ended: {error}")

    def _is_drained(self) -> bool:
        """Return whether all requests have finished that arrived before the router got the table."""
        observations, _ = self._world.observations(self._progress.offset)
        return any(each.oldest_open_at_s > self._written_at_s for each in observations)

    def _watch(self, progress: Progress) -> tuple[Progress, float, bool]:
        """Look at the candidate's process while it must answer.

        Returns:
            The progress with the current process, for how many seconds none has accepted connections, and
            whether another one has taken its place.
        """
        position, now_s = progress.position, self._clock()
        if not (position.is_judged or position.phase in ("paused", "promoting")):
            self._answered_at_s = None
            return progress, 0.0, False
        listener = self._world.listener(progress.candidate_socket)
        if self._answered_at_s is None or listener:
            self._answered_at_s = now_s
        if not listener:
            return progress, now_s - self._answered_at_s, False
        return replace(progress, listener=listener), 0.0, progress.listener not in (0, listener)

    def _measure_idle_s(self) -> float:
        """Return the time since the latest awaited pair; a pause or a new controller restarts it."""
        now_s, position, evidence = self._clock(), self._progress.position, self._evidence
        awaited = position.phase, num_awaited(position, evidence.num_pairs, evidence.num_replays)
        if awaited != self._awaited or position.paused_in or not position.is_judged:
            self._awaited, self._grew_at_s = awaited, now_s
        return now_s - self._grew_at_s

    def _transition(self, decision: Decision, now_s: float) -> Transition | None:
        before, after = self._progress.position, decision.position
        if after.phase == before.phase:
            return None
        evidence, analysis = decision.evidence, self._evidence.analysis
        if before.is_judged and analysis is not None:
            evidence = {**analysis_document(analysis), **evidence}
        weights = weights_at(after, self._rollout.plan)
        return Transition(now_s, before.phase, after.phase, decision.reason, evidence, weights)

    def _write_arms(self) -> None:
        """Write the table of arms with a new lease."""
        self._world.write(arm_table(self._rollout, self._progress, self._clock()))
        if self._written != self._progress.generation:
            self._written, self._written_at_s = self._progress.generation, self._clock()


def _after(progress: Progress, decision: Decision, transition: Transition | None) -> Progress:
    """Return the progress after a decision; what the evidence says of the candidate's socket is kept."""
    progress = replace(progress, position=decision.position)
    if transition is None:
        return progress
    evidence = decision.evidence
    return replace(
        progress,
        generation=progress.generation + 1,
        candidate_socket=str(evidence.get("socket", progress.candidate_socket)),
        same_target=bool(evidence.get("same_target", progress.same_target)),
    )
