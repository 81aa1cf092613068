"""Routes requests to arms, lets another arm take over, and records what happened, whatever the arms are.

Engines of this machine and servers of others are asked in the same way: ``Routing`` chooses the arm by the
table, keeps a breaker for each, and writes the observations by which a candidate is judged. What only one
kind of arm knows, such as how an answer is resumed or compared, its ``RoutedCall`` says.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from pipelines.errors import DraftproofError
from pipelines.router.arms import Arm, ArmTable, LiveArms
from pipelines.router.breaker import Breaker, Outcome
from pipelines.router.choice import choose, chosen_by_client, fallback_order, healthy_first, skipped_arms
from pipelines.router.failover import ArmClient, answer_over
from pipelines.router.observation import Observation
from pipelines.router.observation_log import ObservationLog
from pipelines.router.open_requests import OpenRequests, unix_time_s
from pipelines.router.shadow import Replayed, ShadowTraffic

Chunk = TypeVar("Chunk")

Ended = Literal["answered", "error", "left"]
"""How a request ended: "left" if no arm is to blame, because the client disconnected, its deadline passed, or
the request was refused."""


class RoutedCall(ArmClient[Arm, Chunk], Replayed, Protocol[Chunk]):
    """One request, the arms that may answer it, and what was seen of their answers."""

    @property
    def outcomes(self) -> Mapping[Arm, Outcome]:
        """Known outcomes of the arms that were asked."""

    def deliver(self, chunk: Chunk) -> None:
        """Note a chunk that the client gets."""

    def observed(self, observation: Observation) -> Observation:
        """Complete the observation of an answer by ``observation.arm``."""

    def failed(self, observation: Observation, error: DraftproofError) -> Observation:
        """Complete the observation of a request without an answer; no failure if no arm is to blame."""


@dataclass(frozen=True)
class Arrived:
    """A request of a client, as far as it is routed by it.

    Attributes:
        request_id: Unique id of the request.
        key: The key by which it is routed.
        session_id: Its session; "" for none.
        arm: Arm that the client chose; "" for none.
        prompt_id: Identifies prompt and sampling.
    """

    request_id: str
    key: str
    session_id: str
    arm: str
    prompt_id: str


@dataclass
class Visit:
    """One request that is routed.

    Attributes:
        table: The table of arms at arrival.
        wanted: The arm that the request is routed to.
        number: Number among the open requests.
        observation: The observation, completed when the request ends.
    """

    table: ArmTable
    wanted: Arm
    number: int
    observation: Observation


class Routing(Generic[Chunk]):
    """Arms, their breakers, and the observations of their answers. Runs on a single event loop.

    Args:
        arms: The table of arms.
        log: Receives an observation of each answer during a rollout.
        open_requests: Requests in flight.
        ended: Receives the observation of each request and replay that ended, also without a rollout.
    """

    def __init__(
        self,
        arms: LiveArms,
        log: ObservationLog,
        open_requests: OpenRequests,
        ended: Callable[[Observation, Ended], None],
    ) -> None:
        self._arms = arms
        self._log = log
        self._open = open_requests
        self._has_ended = ended
        self._breakers: dict[str, Breaker] = {}
        self._shadow = ShadowTraffic(arms, open_requests, self._note)

    @property
    def table(self) -> ArmTable:
        """The current table of arms."""
        return self._arms.read()

    @property
    def num_open(self) -> int:
        """Number of requests in flight, including replays."""
        return len(self._open)

    @property
    def replays(self) -> tuple[int, int]:
        """Numbers of replays started and dropped."""
        return self._shadow.num_begun, self._shadow.num_dropped

    def is_out(self, arm: Arm) -> bool:
        """Whether the breaker of an arm is open."""
        setting = self.table.settings.get(arm)
        breaker = self._breakers.get(setting.socket) if setting else None
        return breaker is not None and breaker.state(time.monotonic()) != "closed"

    async def close(self) -> None:
        """Stop all replays."""
        await self._shadow.close()

    def begin(self, arrived: Arrived, table: ArmTable) -> Visit:
        """Choose the arm of a request, and count it as open.

        Raises:
            InvalidRequestError: The client chose an arm that is not served.
        """
        if arrived.arm:
            arm = chosen_by_client(arrived.arm, table.settings)
        else:
            arm = choose(table.weights(unix_time_s()), table.salt, arrived.key)
        number, arrived_at_s = self._open.begin()
        observation = Observation(
            canary_id=table.canary_id,
            request_id=arrived.request_id,
            arm=arm,
            arrived_at_s=arrived_at_s,
            oldest_open_at_s=arrived_at_s,
            band=table.bands.band(len(self._open)),
            overridden=bool(arrived.arm),
            prompt_id=arrived.prompt_id,
            session_id=arrived.session_id,
        )
        return Visit(table, arm, number, observation)

    def ask(self, visit: Visit, arm: Arm) -> Callable[[Outcome], None]:
        """Record that an arm is asked; the returned function is called once, with the outcome."""
        asked = self._breaker(visit.table, arm).begin(time.monotonic())
        return lambda outcome: asked.note(outcome, time.monotonic())

    async def answer(
        self, visit: Visit, call: RoutedCall[Chunk], *, streaming: bool = True, is_alone: bool = False
    ) -> AsyncGenerator[tuple[Arm, Chunk], None]:
        """Answer a request that has begun; see ``failover.answer_over``.

        Args:
            visit: From ``begin``.
            call: The request.
            streaming: Whether the client receives each chunk as it comes.
            is_alone: Whether only the arm that the request is routed to may answer.

        Raises:
            DraftproofError: No arm answered.
        """
        settings = visit.table.settings
        order = (visit.wanted,) if is_alone else fallback_order(visit.wanted, settings)
        healthy = healthy_first(
            order, lambda arm: self._breaker(visit.table, arm).lets_through(time.monotonic())
        )
        is_judged = False
        answered = answer_over(healthy, call, visit.table.slow_after_s, streaming=streaming)
        try:
            async with aclosing(answered) as chunks:
                async for arm, chunk in chunks:
                    call.deliver(chunk)
                    if call.is_last(chunk):
                        is_judged = True
                        self._complete(visit, call, arm, order)
                    yield arm, chunk
        except DraftproofError as error:
            visit.observation = call.failed(visit.observation, error)
            is_judged = bool(visit.observation.failure)
            raise
        finally:
            self._note(visit.number, visit.observation, is_judged)

    def _breaker(self, table: ArmTable, arm: Arm) -> Breaker:
        socket = table.settings[arm].socket
        return self._breakers.setdefault(socket, Breaker(f"{arm} at {socket}"))

    def _complete(self, visit: Visit, call: RoutedCall[Any], arm: Arm, order: tuple[Arm, ...]) -> None:
        """Complete the observation, and let the candidate replay an answer of the stable arm."""
        passed = skipped_arms(order, arm, call.outcomes)
        observation = replace(
            visit.observation,
            arm=arm,
            fallback_from=tuple(each for each, _ in passed),
            fallback_reasons=tuple(reason for _, reason in passed),
            e2e_latency_s=unix_time_s() - visit.observation.arrived_at_s,
        )
        visit.observation = call.observed(observation)
        if arm == visit.wanted == "stable":
            self._shadow.offer(call, visit.observation, visit.table)

    def _note(self, number: int, observation: Observation, is_judged: bool) -> None:
        oldest_open_at_s = self._open.end(number)
        ended: Ended = "left"
        if is_judged:
            ended = "error" if observation.failure else "answered"
        self._has_ended(observation, ended)
        if is_judged and observation.canary_id:  # otherwise there is no rollout to judge
            self._log.put(replace(observation, oldest_open_at_s=oldest_open_at_s))
