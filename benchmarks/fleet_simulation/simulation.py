"""Run a fleet in simulated time. Front doors choose servers with the code that real ones run."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from benchmarks.fleet_simulation.service_times import ServiceTimes
from benchmarks.fleet_simulation.simulated_server import Answer, SimulatedServer
from pipelines.client.request import CompletionRequest
from pipelines.front_door.fleet.placement import Placement
from pipelines.front_door.fleet.server import FleetServer
from pipelines.front_door.router_calls import GatewayCalls

Choose = Callable[[Sequence[FleetServer], Answer], FleetServer]
"""Chooses one of a front door's servers."""


@dataclass(frozen=True)
class Fleet:
    """Size of a fleet and what it is asked.

    Attributes:
        num_servers: Servers.
        num_front_doors: Front doors, which share nothing; each request goes to any of them.
        requests_per_s: Mean rate of requests per server, which arrive independently.
        num_requests: Requests to simulate.
        num_prefixes: System prompts, whose popularity falls as one over their rank.
        prefix_tokens: Tokens of each of them.
        own_tokens: Tokens of a prompt after it.
        mean_tokens: Mean output tokens, geometrically distributed.
    """

    num_servers: int
    num_front_doors: int
    requests_per_s: float
    num_requests: int
    num_prefixes: int
    prefix_tokens: int
    own_tokens: int
    mean_tokens: int


@dataclass(frozen=True)
class Death:
    """Servers that die together.

    Attributes:
        at_s: When they die.
        num_servers: How many.
        noticed_after_s: When front doors send their answers elsewhere.
    """

    at_s: float
    num_servers: int
    noticed_after_s: float


@dataclass(frozen=True)
class Run:
    """Answers of a run, and how busy its servers were.

    Attributes:
        answers: All answers, each complete.
        busy_shares: Share of the time during which each server was busy.
    """

    answers: list[Answer]
    busy_shares: list[float]


def by_placement(placement: Placement, *, with_prefix: bool) -> Choose:
    """Choose as front doors do, with or without regard to prefixes."""

    def choose(servers: Sequence[FleetServer], answer: Answer) -> FleetServer:
        session_id = str(answer.prefix) if with_prefix else ""
        return placement.order(servers, CompletionRequest("", session_id=session_id))[0]

    return choose


def at_random(rng: random.Random) -> Choose:
    """Choose any server that is ready."""
    return lambda servers, answer: rng.choice([server for server in servers if server.is_ready])


class Simulation:
    """One run.

    Args:
        fleet: Its size and load.
        times: Speed of a server.
        choose: How front doors choose.
        seed: Seed of arrivals, prompts and lengths.
        death: Servers that die, if any do.
    """

    def __init__(
        self, fleet: Fleet, times: ServiceTimes, choose: Choose, seed: int, death: Death | None = None
    ) -> None:
        self._fleet = fleet
        self._choose = choose
        self._death = death
        self._rng = np.random.default_rng(seed)
        running_tokens = times.max_batch_size * (fleet.own_tokens + fleet.mean_tokens)
        num_cached = max(1, (times.cache_tokens - running_tokens) // fleet.prefix_tokens)
        names = [f"server-{number}" for number in range(fleet.num_servers)]
        self._servers = {name: SimulatedServer(name, times, num_cached) for name in names}
        self._doors = [[_seen(name) for name in names] for _ in range(fleet.num_front_doors)]
        self._open: dict[Answer, tuple[int, FleetServer]] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_events = 0

    def run(self) -> Run:
        """Simulate all requests to their ends."""
        answers = self._arrivals()
        for answer in answers:
            self._at(answer.asked_at_s, partial(self._arrive, answer))
        if self._death is not None:
            self._at(self._death.at_s, self._die)
        now_s = 0.0
        while self._events:
            now_s, _, happen = heapq.heappop(self._events)
            happen(now_s)
        return Run(answers, [server.busy_s / now_s for server in self._servers.values()])

    def _arrivals(self) -> list[Answer]:
        fleet, rng = self._fleet, self._rng
        gaps_s = rng.exponential(1 / (fleet.requests_per_s * fleet.num_servers), fleet.num_requests)
        weights = 1 / np.arange(1, fleet.num_prefixes + 1)
        prefixes = rng.choice(fleet.num_prefixes, fleet.num_requests, p=weights / weights.sum())
        lengths = rng.geometric(1 / fleet.mean_tokens, fleet.num_requests)
        return [
            Answer(int(prefix), fleet.prefix_tokens, fleet.own_tokens, int(length), float(at_s))
            for at_s, prefix, length in zip(np.cumsum(gaps_s), prefixes, lengths, strict=True)
        ]

    def _at(self, at_s: float, happen: Callable[[float], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, happen))

    def _arrive(self, answer: Answer, now_s: float) -> None:
        self._send(answer, int(self._rng.integers(len(self._doors))), now_s)

    def _send(self, answer: Answer, door: int, now_s: float) -> None:
        chosen = self._choose(self._doors[door], answer)
        chosen.num_open += 1
        self._open[answer] = door, chosen
        server = self._servers[chosen.address]
        server.add(answer, now_s)
        self._plan(server)

    def _plan(self, server: SimulatedServer) -> None:
        at_s, version = server.next_event_s(), server.version

        def happen(now_s: float) -> None:
            if server.version != version:
                return
            ended = server.complete(now_s)
            if ended is not None:
                _, seen = self._open.pop(ended)
                seen.num_open -= 1
            self._plan(server)

        if at_s is not None:
            self._at(at_s, happen)

    def _die(self, now_s: float) -> None:
        assert self._death is not None
        dying = list(self._servers)[: self._death.num_servers]
        left = [answer for name in dying for answer in self._servers[name].die(now_s)]
        for answer in left:
            answer.broken_at_s = now_s
        self._at(now_s + self._death.noticed_after_s, lambda then_s: self._notice(dying, left, then_s))

    def _notice(self, dying: Sequence[str], left: Sequence[Answer], now_s: float) -> None:
        """Send what the dead servers owe to others; whatever reached them meanwhile is sent again as well."""
        for servers in self._doors:
            for server in servers:
                server.is_ready = server.is_ready and server.address not in dying
        late = [answer for name in dying for answer in self._servers[name].die(now_s)]
        for answer in (*left, *late):
            door, seen = self._open.pop(answer)
            seen.num_open -= 1
            self._send(answer, door, now_s)


def _seen(address: str) -> FleetServer:
    """Return a server as a front door sees it, which is never connected to."""
    return FleetServer(address, cast(GatewayCalls, None), is_ready=True)
