"""Measure what it costs that front doors look at a server.

``python -m benchmarks.placement.looks`` starts a server of a recipe and lets connections look at it as front
doors do, each twice a second, in turn with phases without looks. CPU time of the server's processes beyond
that of the idle phases, and of this process, is divided by the looks. The last line of standard output is
JSON. Exit codes: 0 success; 1 an error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from benchmarks.front_door.cost import CpuTime
from benchmarks.placement.fleet import grpc_address, running_servers
from benchmarks.versions.figures import median_interval
from build.built_pair import build_pair
from build.recipe import load_recipe
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.process import processes_with
from pipelines.deploy.server import RUN, Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.errors import ServerUnavailableError
from pipelines.front_door.fleet.fleet import LOOK_INTERVAL_S, TIMEOUTS
from pipelines.front_door.fleet.server import FleetServer
from pipelines.front_door.router_calls import GatewayCalls
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

NUM_LOOKERS = (20, 200)
"""Connections that look: 20 front doors at one server, and as many looks as one front door has of 200."""

_PHASE_S = 10.0
_LEAST_PAIRS = 6  # the bootstrap interval of the median of fewer is too narrow


@dataclass(frozen=True)
class Used:
    """CPU time in seconds: of the gateway, of Triton and its models, and of this process."""

    gateway_s: float
    models_s: float
    own_s: float

    def since(self, before: Used) -> Used:
        """Return what was used after an earlier reading."""
        return Used(
            self.gateway_s - before.gateway_s, self.models_s - before.models_s, self.own_s - before.own_s
        )


@dataclass(frozen=True)
class Phases:
    """CPU time in a phase without looks, in one with looks, and the number of these."""

    idle: Used
    looking: Used
    num_looks: int


def figures_of(phases: Sequence[Phases], num_lookers: int) -> dict[str, Any]:
    """Return microseconds for each look: medians over pairs of phases with their intervals."""

    def per_look(read: Callable[[Used], float]) -> dict[str, float]:
        values = [1e6 * (read(each.looking) - read(each.idle)) / each.num_looks for each in phases]
        return asdict(median_interval(values))

    return {
        "num_lookers": num_lookers,
        "looks_per_s": statistics.median(each.num_looks for each in phases) / _PHASE_S,
        "gateway_us": per_look(lambda used: used.gateway_s),
        "models_us": per_look(lambda used: used.models_s),
        "front_door_us": per_look(lambda used: used.own_s),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement.looks", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="recipe of the server (%(default)s)")
    parser.add_argument(
        "--pairs",
        type=whole_number(_LEAST_PAIRS),
        default=8,
        help="pairs of phases of each number (%(default)s)",
    )
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        pair = build_pair(load_recipe(options.recipe), print)
        with stopped_by_signals(), running_servers(pair, RUN / "looks", 1) as (server,):
            context = conditions("benchmarks.placement.looks", command_line, recipe=options.recipe)
            found = [
                figures_of(uvloop.run(_measure(server, number, options.pairs)), number)
                for number in NUM_LOOKERS
            ]
        print(
            json.dumps({"phase_s": _PHASE_S, "pairs": options.pairs, "looks": found, "conditions": context})
        )
        return EXIT_PASS

    return run_program(work)


async def _measure(server: Server, num_lookers: int, num_pairs: int) -> list[Phases]:
    address = grpc_address(server)
    calls = [GatewayCalls(address, TIMEOUTS, 1) for _ in range(num_lookers)]
    try:
        own = ServerIdentity.of_extensions(await calls[0].extensions())
        if own is None:
            raise ServerUnavailableError(
                "the server does not say what it serves",
                values=address,
                limit="a server of this version",
                remedy="read its log",
            )
        lookers = [FleetServer(address, each) for each in calls]
        await _look(lookers, own, 1.0)  # connects all of them
        phases = []
        for _ in range(num_pairs):
            before = _used(server)
            await asyncio.sleep(_PHASE_S)
            between = _used(server)
            num_looks = await _look(lookers, own, _PHASE_S)
            phases.append(Phases(between.since(before), _used(server).since(between), num_looks))
        return phases
    finally:
        await asyncio.gather(*(each.close() for each in calls))


async def _look(lookers: Sequence[FleetServer], own: ServerIdentity, seconds: float) -> int:
    """Let all look for some time, beginning at different moments; returns the number of looks."""
    ends_s = time.monotonic() + seconds

    async def repeat(looker: FleetServer, first_after_s: float) -> int:
        await asyncio.sleep(first_after_s)
        count = 0
        while time.monotonic() < ends_s:
            await looker.look(own)
            count += 1
            await asyncio.sleep(min(LOOK_INTERVAL_S, max(ends_s - time.monotonic(), 0.0)))  # as long as idle
        return count

    begins_s = [LOOK_INTERVAL_S * place / len(lookers) for place in range(len(lookers))]
    return sum(await asyncio.gather(*map(repeat, lookers, begins_s)))


def _used(server: Server) -> Used:
    others = {process.pid for process, _ in processes_with(prefix_of(server.directory))}
    others |= {process.pid for process, _ in processes_with(str(server.directory.resolve()))}
    others.discard(server.process.pid)
    return Used(
        CpuTime(server.process.pid).seconds(),
        sum(CpuTime(each).seconds() for each in others),
        time.process_time(),
    )


if __name__ == "__main__":
    sys.exit(main())
