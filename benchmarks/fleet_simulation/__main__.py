"""Simulate fleets of 10, 100 and 1,000 servers.

``python -m benchmarks.fleet_simulation`` asks each fleet with shared system prompts and lets its front doors
choose servers as they do, without regard to prefixes, and at random. Then a twentieth of the servers dies.
Servers are as fast as the recorded measurements of RECIPE; the code that chooses servers is timed. The last
line of standard output is JSON. Exit codes: 0 success; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.fleet_simulation.service_times import ServiceTimes
from benchmarks.fleet_simulation.simulated_server import Answer
from benchmarks.fleet_simulation.simulation import Choose, Death, Fleet, Simulation, at_random, by_placement
from build.recipe import load_recipe
from pipelines.bench.reporting.conditions import conditions
from pipelines.front_door.fleet.placement import Placement
from pipelines.program import EXIT_PASS, run_program

RECIPE = "demo-large"
SIZES = ((10, 2), (100, 10), (1000, 20))
"""Servers and front doors."""

REQUESTS_PER_S = 1.0
_REQUESTS_PER_SERVER = 40
_LEAST_REQUESTS = 4000
_NOTICED_AFTER_S = 0.5
_DYING = 20  # one server of so many
_LEAST_BROKEN = 50  # answers
_AFTER_S = 10.0  # after servers died
_PROMPTS = {"num_prefixes": 200, "prefix_tokens": 512, "own_tokens": 64, "mean_tokens": 64}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_simulation", description=__doc__)
    parser.add_argument("--most-servers", type=int, default=SIZES[-1][0], help="leave larger fleets out")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        context = conditions("benchmarks.fleet_simulation", command_line, recipe=RECIPE)
        times = ServiceTimes.recorded(load_recipe(RECIPE))
        fleets = [simulated(size, times) for size in SIZES if size[0] <= options.most_servers]
        document = {"times": asdict(times), "fleets": fleets, "conditions": context}
        print(json.dumps(document))
        return EXIT_PASS

    return run_program(work)


def simulated(size: tuple[int, int], times: ServiceTimes) -> dict[str, Any]:
    """Simulate one size of a fleet; returns its figures.

    Args:
        size: Number of servers, and of front doors.
        times: Speed of a server.
    """
    num_servers, num_front_doors = size
    num_requests = max(_LEAST_REQUESTS, _REQUESTS_PER_SERVER * num_servers)
    fleet = Fleet(num_servers, num_front_doors, REQUESTS_PER_S, num_requests, **_PROMPTS)
    placement = Placement(_PROMPTS["prefix_tokens"])
    choices: dict[str, Choose] = {
        "by prefix and load": by_placement(placement, with_prefix=True),
        "by load": by_placement(placement, with_prefix=False),
        "at random": at_random(random.Random(0)),
    }
    placements = {}
    for name, choose in choices.items():
        began_s = time.process_time()
        run = Simulation(fleet, times, choose, seed=1).run()
        placements[name] = {
            **_figures(run.answers[num_requests // 2 :]),  # by then the caches are warm
            "busy_share": statistics.mean(run.busy_shares),
            "busiest_share": max(run.busy_shares),
        }
        print(f"{num_servers} servers, {name}: {time.process_time() - began_s:.0f} s", file=sys.stderr)
    at_s = 0.75 * num_requests / num_servers / REQUESTS_PER_S
    death = Death(at_s, max(1, num_servers // _DYING), _NOTICED_AFTER_S)
    return {
        **asdict(fleet),
        "placements": placements,
        "death": {**asdict(death), **_pauses(fleet, times, choices["by prefix and load"], death)},
        "placement_us": _placement_us(fleet, times, placement),
    }


def _figures(answers: Sequence[Answer]) -> dict[str, float]:
    waits_s = [answer.first_at_s - answer.asked_at_s for answer in answers if answer.first_at_s is not None]
    return {
        "hit_rate": statistics.mean(bool(answer.was_cached) for answer in answers),
        "ttft_s_mean": statistics.mean(waits_s),
        "ttft_s_p50": statistics.median(waits_s),
        "ttft_s_p99": statistics.quantiles(waits_s, n=100)[-1],
    }


def _pauses(fleet: Fleet, times: ServiceTimes, choose: Choose, death: Death) -> dict[str, float]:
    """Let servers die, in as many runs as it takes to break enough answers."""
    pauses_s: list[float] = []
    seed = 1
    while len(pauses_s) < _LEAST_BROKEN:
        seed += 1
        answers = Simulation(fleet, times, choose, seed, death).run().answers
        pauses_s += [
            answer.continued_at_s - answer.broken_at_s
            for answer in answers
            if answer.num_given and answer.continued_at_s is not None and answer.broken_at_s is not None
        ]
    after = [answer for answer in answers if 0 <= answer.asked_at_s - death.at_s < _AFTER_S]
    return {
        "num_continued": len(pauses_s),
        "pause_s_median": statistics.median(pauses_s),
        "pause_s_worst": max(pauses_s),
        "ttft_s_p99_after": _figures(after)["ttft_s_p99"],
    }


def _placement_us(fleet: Fleet, times: ServiceTimes, placement: Placement) -> float:
    """Return the CPU time in microseconds that a front door needs to choose, at no load."""
    small = Fleet(**{**asdict(fleet), "num_requests": 500, "num_front_doors": 1})
    spent_s: list[float] = []
    choose = by_placement(placement, with_prefix=True)

    def timed(servers: Any, answer: Answer) -> Any:
        began_s = time.process_time()
        chosen = choose(servers, answer)
        spent_s.append(time.process_time() - began_s)
        return chosen

    Simulation(small, times, timed, seed=2).run()
    return 1e6 * statistics.median(spent_s)


if __name__ == "__main__":
    sys.exit(main())
