"""The controller of a rollout: it looks, decides, stores the decision and then acts.

Each look first writes what it found and decided to the state file, in one transaction; then the table of
arms; then the work of the next phase changes the server. If a controller is killed in between, the next one
reads the state file and repeats the other two. So a decision to roll back is final once it is written, and
the candidate's weight falls before anything else happens; until then the lease in the table limits the harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipelines.canary.checks.process_figures import ProcessSamples
from pipelines.canary.controller.arm_table import arm_table, weights_at, without_candidate
from pipelines.canary.controller.facts import Facts, Judged, Outcome
from pipelines.canary.controller.phases import (
    ENDED,
    PREPARING,
    Decision,
    Position,
    decide,
    num_awaited,
    share_of_servers,
)
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.fleet.servers import Servers, Watched
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.pairing import NumPairs, count_pairs
from pipelines.canary.judge.verdict import Analysis, analyse
from pipelines.canary.report.record import Transition
from pipelines.canary.report.sections import analysis_section
from pipelines.errors import CanaryError, DraftproofError
from pipelines.router.arms import ArmTable

_Clock = Callable[[], float]


@dataclass(frozen=True)
class Look:
    """Result of one look, for people.

    Attributes:
        rollout: Rollout of the state file.
        position: New position.
        transition: Change of phase; None if the phase stays.
        analysis: Analysis of the requests; None without requests.
        requests: Requests that were analysed.
        num_pairs: Pairs of candidate and stable pair.
        unmeasured: Why the latest sample of memory and CPU time could not be taken; "" if it could.
        waits_for: Servers without which the rollout waits, in words; "" if it does not.
    """

    rollout: Rollout
    position: Position
    transition: Transition | None
    analysis: Analysis | None
    requests: list[ObservedRequest]
    num_pairs: NumPairs
    unmeasured: str = ""
    waits_for: str = ""


class Controller:
    """Runs one rollout to completion.

    Args:
        store: State file; the caller holds its lock (``sole_controller``).
        rollout: Rollout to run or to resume.
        servers: Servers and routers that it acts on.
        clock: Returns the unix time.
        check: Called before each decision is stored; raises an error if this controller may not decide.
    """

    def __init__(
        self,
        store: Store,
        rollout: Rollout,
        servers: Servers,
        clock: _Clock = time.time,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._rollout = rollout
        self._servers = servers
        self._clock = clock
        self._check = check
        self._progress = store.progress(rollout)
        self._requests = store.requests(rollout)
        self._samples = ProcessSamples(store.samples(rollout), clock)
        self._analysis: Analysis | None = None
        self._num_pairs = NumPairs()
        self._analysed = (-1, -1)  # numbers of complete requests and of samples
        self._awaited, self._grew_at_s = ("", 0), clock()  # phase, its pairs, and when the latest came
        self._told, self._told_at_s = -1, 0.0  # generation, and when the router got it

    def run(self, show: Callable[[Look], None], sleep: Callable[[float], None] = time.sleep) -> Position:
        """Look until the rollout has ended.

        Args:
            show: Called with each look.
            sleep: Waits for a number of seconds.

        Raises:
            DraftproofError: The rollout cannot continue. The candidate gets no more requests; another
                controller can resume the rollout.
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
        """Look once: read, work, decide, store and tell the router."""
        servers, before = self._servers, self._progress
        servers.look_around(before.candidate_socket, is_stable=before.position.is_stable)
        fresh, divergences, broken = self._read_observations()
        requests = [*self._requests, *fresh]
        is_sampled = self._progress.position.is_judged and self._rollout.limits.judges_resources
        samples = self._samples.take(servers.samples, is_wanted=is_sampled)
        if not broken:
            broken = self._analyse(requests)
        order = self._store.next_order(self._rollout)
        is_incomplete = servers.is_incomplete(self._share)  # before the work: they get requests after it
        outcome = self._do_work()
        watched = self._watch()
        facts = Facts(
            now_s=self._clock(),  # after the work, which may take minutes
            order=order and order[1],
            outcome=outcome,
            judged=None if self._analysis is None else Judged.of(self._analysis),
            num_pairs=self._num_pairs.asked,
            num_replays=self._num_pairs.replayed,
            idle_s=self._measure_idle_s(),
            down_s=watched.down_s,
            has_restarted=watched.has_restarted,
            broken=broken,
            unmeasured=self._samples.lacking_for(self._rollout.plan.idle_s),
            faulty=watched.server,
            is_incomplete=is_incomplete,
            waits_for=servers.waits_for,
        )
        decision = decide(self._progress.position, facts, self._rollout.plan)
        transition = self._transition(decision, facts.now_s)
        progress = replace(self._progress, position=decision.position, servers=dict(servers.states))
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
        self._check()
        self._store.advance(
            self._rollout, progress, fresh, divergences, transition, order and order[0], samples
        )
        self._progress, self._requests = progress, requests
        self._tell()
        return Look(
            self._rollout,
            progress.position,
            transition,
            self._analysis,
            self._complete(requests),
            self._num_pairs,
            self._samples.lacking,
            servers.waits_for,
        )

    def _read_observations(self) -> tuple[list[ObservedRequest], list[dict[str, object]], str]:
        """Read what is new in the routers' logs; the last value says why that failed, or is ""."""
        rollout = self._rollout
        if not self._progress.position.is_judged:
            return [], [], ""
        try:
            return *self._servers.read(rollout.canary_id, rollout.limits.runtime), ""
        except CanaryError as error:
            return [], [], str(error)

    def _analyse(self, requests: list[ObservedRequest]) -> str:
        """Judge again if there is new evidence; returns why that failed, or ""."""
        complete = self._complete(requests)
        known = len(complete), len(self._samples.taken)
        if known == self._analysed or not complete:
            return ""
        rollout = self._rollout
        try:
            self._analysis = analyse(complete, rollout.limits, rollout.plan.slo, self._samples.taken)
        except CanaryError as error:
            return str(error)
        self._num_pairs = count_pairs(complete)
        self._analysed = known
        return ""

    def _complete(self, requests: list[ObservedRequest]) -> list[ObservedRequest]:
        states = self._servers.states
        return [each for each in requests if states[each.server].is_complete_at(each.arrived_at_s)]

    def _do_work(self) -> Outcome | None:
        """Do the work of the phase; returns None if the phase has none or its work is not done."""
        position, plan = self._progress.position, self._rollout.plan
        since_s = self._clock() - position.since_s
        if position.phase in PREPARING:
            work = {
                "preflight": self._servers.preflight,
                "loading": self._servers.load,
                "cold_start": self._servers.probe,
            }[position.phase]
            try:
                return work()
            except DraftproofError as error:
                return Outcome(False, f"{position.phase} failed: {error}")
        if position.phase == "rolling_back":
            return self._unload(since_s)
        failed = self._servers.bring_up(self._share, self._progress.candidate_socket)
        if position.phase == "settling":
            return self._settle()
        if failed is None and position.phase == "promoting" and since_s >= plan.watch_s:
            return None if self._servers.is_incomplete(self._share) else self._keep()
        return failed

    @property
    def _share(self) -> float:
        """Share of the servers that should have the candidate."""
        return share_of_servers(self._progress.position, self._rollout.plan)

    def _unload(self, since_s: float) -> Outcome | None:
        """Unload the candidate once its requests have finished; leave it loaded if that keeps failing."""
        drain_s = self._rollout.plan.drain_s
        try:
            if since_s < drain_s and not self._is_drained():
                return None
            became = self._servers.unload()
        except DraftproofError as error:
            if since_s < 2 * drain_s:
                return None
            return Outcome(True, f"the candidate gets no requests, but could not be unloaded: {error}")
        return None if became is None else Outcome(True, became)

    def _is_drained(self) -> bool:
        """Return whether all requests have finished that arrived before the router got the table."""
        return self._servers.is_drained(self._told_at_s)

    def _keep(self) -> Outcome:
        try:
            return self._servers.keep()
        except DraftproofError as error:
            return Outcome(False, f"the candidate could not be made permanent: {error}")

    def _settle(self) -> Outcome | None:
        try:
            return self._servers.settle()
        except DraftproofError as error:
            return Outcome(
                True, f"the candidate serves, but the former stable pair could not be unloaded: {error}"
            )

    def _measure_idle_s(self) -> float:
        """Return the time since the latest awaited pair; a pause, a wait or a new controller restarts it."""
        now_s, position = self._clock(), self._progress.position
        is_waiting = bool(position.paused_in or self._servers.waits_for)
        awaited = position.phase, num_awaited(position, self._num_pairs.asked, self._num_pairs.replayed)
        if awaited != self._awaited or is_waiting or not position.is_judged:
            self._awaited, self._grew_at_s = awaited, now_s
        return now_s - self._grew_at_s

    def _watch(self) -> Watched:
        """Look at the candidate's processes while they must answer."""
        position = self._progress.position
        if position.is_judged or position.phase in ("paused", "promoting"):
            return self._servers.watch(self._progress.candidate_socket, self._clock())
        self._servers.rest()
        return Watched()

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
        """Write the tables of arms with a new lease."""
        self._write(arm_table(self._rollout, self._progress, self._clock()))
        if self._told != self._progress.generation:
            self._told, self._told_at_s = self._progress.generation, self._clock()

    def _let_lease_end(self) -> None:
        """End the lease, because no controller watches the candidate from now on."""
        table = arm_table(self._rollout, self._progress, self._clock())
        self._write(replace(table, lease_until_s=0.0))

    def _write(self, table: ArmTable) -> None:
        without = without_candidate(table, self._rollout)
        self._servers.write(table, without, is_stable=self._progress.position.is_stable)
