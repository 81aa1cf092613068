"""Routes requests to arms, lets another arm take over, and records what happened, whatever the arms are.

Engines of this machine and servers of others are asked in the same way: ``Routing`` chooses the arm by the
table, keeps a breaker for each, and writes the observations by which a candidate is judged. What only one
kind of arm knows, such as how an answer is resumed or compared, its ``RoutedCall`` says.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol

from pipelines.errors import DraftproofError
from pipelines.router.arms import Arm, ArmTable, LiveArms
from pipelines.router.breaker import FAILURES, Breaker, Outcome
from pipelines.router.choice import choose, chosen_by_client, fallback_order, skipped_arms
from pipelines.router.failover import Call, Chunk, answer_over
from pipelines.router.metrics import ArmMetrics, Ended
from pipelines.router.observation import Observation, unix_time_s
from pipelines.router.observation_log import ObservationLog
from pipelines.router.shadow import Replayed, ShadowTraffic


class RoutedCall(Call[Arm, Chunk], Replayed, Protocol[Chunk]):
    """One request, the arms that may answer it, and what was seen of their answers."""

    def has_fault(self, arm: Arm) -> bool:
        """Whether an answer of an arm counts as none, though it has been delivered."""

    def observed(self, observation: Observation) -> Observation:
        """Complete the observation of an answer by ``observation.arm``."""

    def failed(self, observation: Observation, error: DraftproofError) -> Observation:
        """Complete the observation of a request without an answer; no failure if no arm is to blame.

        ``observation.arm`` failed last.
        """


@dataclass
class Routed:
    """One request, and where it is routed to.

    Attributes:
        table: The table of arms at arrival.
        arm: The arm that the request is routed to.
        number: Number among the open requests.
        observation: The observation, completed when the request ends.
        outcomes: Outcomes of the arms that were asked.
    """

    table: ArmTable
    arm: Arm
    number: int
    observation: Observation
    outcomes: dict[Arm, Outcome] = field(default_factory=dict)


class Routing(Generic[Chunk]):
    """Arms, their breakers, and the observations of their answers. Runs on a single event loop.

    Attributes:
        metrics: What operators see of the arms.
        shadow: Replays requests on the candidate.

    Args:
        arms: The table of arms.
        log: Receives an observation of each answer during a rollout.
    """

    def __init__(self, arms: LiveArms, log: ObservationLog) -> None:
        self.metrics = ArmMetrics(arms.read, self.is_out, lambda: log.num_dropped)
        self._arms = arms
        self._log = log
        self._numbers = itertools.count()
        self._arrived_at_s: dict[int, float] = {}  # of what is in flight, in the order of arrival
        self._breakers: dict[str, Breaker] = {}
        self.shadow = ShadowTraffic(arms, self._open, self._note)

    @property
    def table(self) -> ArmTable:
        """The current table of arms."""
        return self._arms.read()

    @property
    def num_open(self) -> int:
        """Number of requests in flight, including replays."""
        return len(self._arrived_at_s)

    def is_out(self, arm: Arm) -> bool:
        """Whether the breaker of an arm is open."""
        breaker = self._breakers.get(self.table.sockets.get(arm, ""))
        return breaker is not None and breaker.state(time.monotonic()) != "closed"

    async def close(self) -> None:
        """Stop all replays."""
        await self.shadow.close()

    def begin(
        self, table: ArmTable, request_id: str, key: str, *, session_id: str, named: str, prompt_id: str
    ) -> Routed:
        """Choose the arm of a request, and count it as in flight.

        Args:
            table: The current table of arms.
            request_id: Unique id of the request.
            key: The key by which it is routed.
            session_id: Its session; "" for none.
            named: Arm that the client chose; "" for none.
            prompt_id: Identifies prompt and sampling.

        Raises:
            InvalidRequestError: The client chose an arm that is not served.
        """
        if named:
            arm = chosen_by_client(named, table.sockets)
        else:
            arm = choose(table.weights(unix_time_s()).get("candidate", 0.0), table.salt, key)
        number, arrived_at_s = self._open()
        observation = Observation(
            canary_id=table.canary_id,
            request_id=request_id,
            arm=arm,
            arrived_at_s=arrived_at_s,
            oldest_open_at_s=arrived_at_s,
            band=table.bands.band(self.num_open),
            overridden=bool(named),
            prompt_id=prompt_id,
            session_id=session_id,
        )
        return Routed(table, arm, number, observation)

    def _ask(self, routed: Routed, call: RoutedCall[Any], arm: Arm) -> Callable[[Outcome], None]:
        note = self._breaker(routed.table, arm).begin(time.monotonic())

        def end(outcome: Outcome) -> None:
            if outcome in ("answered", "cancelled") and call.has_fault(arm):
                outcome = "error"
            routed.outcomes[arm] = outcome
            note(outcome, time.monotonic())

        return end

    async def answer(
        self, routed: Routed, call: RoutedCall[Chunk], *, streaming: bool = True, is_alone: bool = False
    ) -> AsyncGenerator[tuple[Arm, Chunk], None]:
        """Answer a request that has begun; see ``failover.answer_over``.

        Args:
            routed: From ``begin``.
            call: The request.
            streaming: Whether the client receives each chunk as it comes.
            is_alone: Whether only the arm that the request is routed to may answer.

        Raises:
            DraftproofError: No arm answered.
        """
        table = routed.table
        order = (routed.arm,) if is_alone else fallback_order(routed.arm, table.sockets)
        # Arms with an open breaker come last, so a request fails only if no arm answers.
        healthy = sorted(order, key=lambda arm: not self._breaker(table, arm).lets_through(time.monotonic()))
        is_judged = False
        begin = partial(self._ask, routed, call)
        answered = answer_over(healthy, call, begin, table.slow_after_s, streaming=streaming)
        try:
            async with aclosing(answered) as chunks:
                async for arm, chunk in chunks:
                    if chunk.is_last:
                        is_judged = True
                        self._complete(routed, call, arm, order)
                    yield arm, chunk
        except DraftproofError as error:
            failed = [arm for arm, outcome in routed.outcomes.items() if outcome in FAILURES]
            arm = failed[-1] if failed else routed.arm
            routed.observation = call.failed(replace(routed.observation, arm=arm), error)
            is_judged = bool(routed.observation.failure)
            raise
        finally:
            self._note(routed.number, routed.observation, is_judged)

    def _open(self) -> tuple[int, float]:
        """Count a request or a replay as in flight; returns its number and the time."""
        number, now_s = next(self._numbers), unix_time_s()
        self._arrived_at_s[number] = now_s
        return number, now_s

    def _breaker(self, table: ArmTable, arm: Arm) -> Breaker:
        socket = table.sockets[arm]
        return self._breakers.setdefault(socket, Breaker(f"{arm} at {socket}"))

    def _complete(self, routed: Routed, call: RoutedCall[Any], arm: Arm, order: tuple[Arm, ...]) -> None:
        """Complete the observation, and let the candidate replay an answer of the stable arm."""
        passed = skipped_arms(order, arm, routed.outcomes)
        observation = replace(
            routed.observation,
            arm=arm,
            fallback_from=tuple(each for each, _ in passed),
            fallback_reasons=tuple(reason for _, reason in passed),
            e2e_latency_s=unix_time_s() - routed.observation.arrived_at_s,
        )
        routed.observation = call.observed(observation)
        if arm == routed.arm == "stable":
            self.shadow.offer(call, routed.observation, routed.table)

    def _note(self, number: int, observation: Observation, is_judged: bool) -> None:
        del self._arrived_at_s[number]
        oldest_open_at_s = next(iter(self._arrived_at_s.values()), unix_time_s())
        ended: Ended = "left"
        if is_judged:
            ended = "error" if observation.failure else "answered"
        self.metrics.count(observation, ended)
        if is_judged and observation.canary_id:  # otherwise there is no rollout to judge
            self._log.put(replace(observation, oldest_open_at_s=oldest_open_at_s))
