"""Chooses the server that answers a request, falls back to another one, and records observations."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.router.arms import Arm, ArmTable, LiveArms
from pipelines.router.arrival import Arrived, begin_observation
from pipelines.router.breaker import Breaker, Outcome
from pipelines.router.choice import fallback_order, healthy_first, skipped_arms
from pipelines.router.failover import answer_over
from pipelines.router.observation import Observation
from pipelines.router.observation_log import ObservationLog
from pipelines.router.open_requests import OpenRequests, unix_time_s
from pipelines.router.replays import is_replayed
from pipelines.upstreams.answer import Answer
from pipelines.upstreams.call import Piece, UpstreamCall
from pipelines.upstreams.replays import Replays
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.upstream import Fault, Upstream


class Observe(Protocol):
    """Receives what ended."""

    def __call__(self, observation: Observation, *, is_judged: bool) -> None:
        """Receive an observation; ``is_judged`` is false if the client left, or is to blame."""


@dataclass
class _Visit:
    """One request in the router.

    Attributes:
        request: The request.
        table: The table of arms at arrival.
        wanted: The arm that the request is routed to.
        number: Number among the open requests.
        observation: The observation, completed when the request ends.
    """

    request: ForwardedRequest
    table: ArmTable
    wanted: Arm
    number: int
    observation: Observation


class UpstreamRouter:
    """Answers requests through the servers. Runs on a single event loop.

    Args:
        arms: The table of arms, whose sockets are names of servers.
        log: Receives an observation of each answer during a rollout.
        upstreams: The servers by their names.
        observe: Receives the observation of every request and replay, also without a rollout.
    """

    def __init__(
        self,
        arms: LiveArms,
        log: ObservationLog,
        upstreams: Mapping[str, Upstream],
        observe: Observe,
    ) -> None:
        self._arms = arms
        self._log = log
        self._upstreams = upstreams
        self._observe = observe
        self._open = OpenRequests()
        self._breakers = {name: Breaker(name) for name in upstreams}
        self._replays = Replays(arms, self._open, self._note, upstreams)

    @property
    def stable(self) -> Upstream:
        """The server in service."""
        return self._upstreams[self._arms.read().stable.socket]

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[tuple[Arm, Piece], None]:
        """Stream the response of one server; a refusal, if no server answers.

        Raises:
            InvalidRequestError: The client chose an arm that is not served.
            EngineFailedError: No server answered or said why.
        """
        visit = self._begin(request)
        settings = visit.table.settings
        call = UpstreamCall(
            request,
            {arm: self._upstreams[setting.socket] for arm, setting in settings.items()},
            lambda arm: self._ask(settings[arm].socket),
        )
        order = fallback_order(visit.wanted, settings)
        healthy = healthy_first(
            order, lambda arm: self._breakers[settings[arm].socket].lets_through(time.monotonic())
        )
        is_judged = False
        try:
            pieces = answer_over(healthy, call, visit.table.slow_after_s)
            async with aclosing(pieces) as answered:
                async for arm, piece in answered:
                    call.has_begun = True
                    if piece.is_last:
                        is_judged = True
                        self._answered(visit, arm, order, call)
                    call.may_read.clear()
                    yield arm, piece
                    call.may_read.set()
        except DraftproofError as error:
            arm, fault = _fault_of(error, call)
            is_judged = not isinstance(error, InvalidRequestError)
            visit.observation = replace(visit.observation, arm=arm, failure="error", fault=fault.name)
            if fault.response is None:
                raise
            yield arm, Piece(*fault.response, is_last=True)
        finally:
            self._note(visit.number, visit.observation, is_wanted=is_judged)

    async def close(self) -> None:
        """Stop all replays."""
        await self._replays.close()

    def _begin(self, request: ForwardedRequest) -> _Visit:
        table = self._arms.read()
        own_id = secrets.token_hex(12)
        key = request.session_id or own_id
        arrived = Arrived(own_id, key, request.session_id, request.arm, request.prompt_id)
        number, observation = begin_observation(arrived, table, self._open)
        return _Visit(request, table, observation.arm, number, observation)

    def _ask(self, name: str) -> Callable[[Outcome], None]:
        asked = self._breakers[name].begin(time.monotonic())
        return lambda outcome: asked.note(outcome, time.monotonic())

    def _answered(self, visit: _Visit, arm: Arm, order: tuple[Arm, ...], call: UpstreamCall) -> None:
        """Complete the observation, and offer an answer of the stable server for replay."""
        passed = skipped_arms(order, arm, call.outcomes)
        visit.observation = replace(
            observed(visit.observation, call.answers[arm], call.faults.get(arm)),
            arm=arm,
            fallback_from=tuple(each for each, _ in passed),
            # A server that is asked for too much has failed as well: both get requests of the same clients.
            fallback_reasons=tuple("error" if reason == "busy" else reason for _, reason in passed),
            fallback_faults=tuple(_name(call, each, reason) for each, reason in passed),
        )
        setting = visit.table.shadow
        if (
            arm == visit.wanted == "stable"
            and setting is not None
            and not (visit.observation.failure or visit.observation.overridden)
            and is_replayed(setting, visit.table.salt, visit.observation.request_id)
        ):
            self._replays.offer(visit.request, visit.observation, call.answers[arm])

    def _note(self, number: int, observation: Observation, *, is_wanted: bool) -> None:
        oldest_open_at_s = self._open.end(number)
        self._observe(observation, is_judged=is_wanted)
        if is_wanted and observation.canary_id:  # otherwise there is no rollout to judge
            self._log.put(replace(observation, oldest_open_at_s=oldest_open_at_s))


def observed(observation: Observation, answer: Answer, fault: Fault | None) -> Observation:
    """Return an observation with what is known of the answer; one with a fault counts as none."""
    if fault is not None:
        return replace(observation, failure="error", fault=fault.name)
    first_at_s, arrived_at_s = answer.first_at_s, observation.arrived_at_s
    return replace(
        observation,
        ttft_s=None if first_at_s is None else first_at_s - arrived_at_s,
        e2e_latency_s=unix_time_s() - arrived_at_s,
        longest_pause_s=answer.longest_pause_s,
        num_output_tokens=answer.num_tokens,
    )


def _fault_of(error: DraftproofError, call: UpstreamCall) -> tuple[Arm, Fault]:
    """Return the arm that an error comes from, and what went wrong."""
    arm, fault = next(
        ((arm, fault) for arm, fault in call.faults.items() if fault.error is error),
        (next(reversed(call.outcomes)), Fault(error.what, error)),
    )
    return arm, fault


def _name(call: UpstreamCall, arm: Arm, reason: str) -> str:
    fault = call.faults.get(arm)
    if fault is not None:
        return fault.name
    return {"timeout": "no token in time", "out": "not asked: it failed too often"}.get(reason, reason)
