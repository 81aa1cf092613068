"""Runs the drills of a fleet: ``python -m tests.fleet_drills`` (``make drills-fleet``).

Exits with 0 if no answer was lost or wrong. ``--drills`` divides the hour that all take.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import conditions_line, markdown
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.program import stopped_by_signals
from tests.fleet_drills.crowd import Asked, Crowd
from tests.fleet_drills.faults import FAULTS, kill_front_door
from tests.fleet_drills.place import NUM_SERVERS, Place

_NUM_CLIENTS = 3  # of each server
_BETWEEN_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    (REPOSITORY_ROOT / ".run").mkdir(exist_ok=True)
    results: list[dict[str, Any]] = []
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="fleet-", dir=REPOSITORY_ROOT / ".run") as folder,
        Place(Path(folder)) as place,
    ):
        crowd = Crowd(place.doors.url)
        about = conditions("tests.fleet_drills", sys.argv[1:])
        about["engines"] = engine_conditions({"target": place.target})
        for name in options.drills:
            results.append({"drill": name, **_drill(place, crowd, FAULTS[name], options.num_requests)})
            print(results[-1], flush=True)
    print(_table(results), conditions_line(about), sep="\n\n")
    return int(not all(map(_is_well, results)))


def _table(results: Sequence[Mapping[str, Any]]) -> str:
    counts = ("drill", "rounds", "num_requests", "num_lost", "num_wrong", "num_broken", "num_interrupted")
    pauses = ("median_pause_s", "longest_pause_s")
    rows = [
        [
            *(each[name] for name in counts),
            *("-" if each[name] is None else f"{each[name]:.2f} s" for name in pauses),
        ]
        for each in results
    ]
    heads = ["Drill", "Times", "Requests", "Lost", "Wrong", "Sent again", "Interrupted streams"]
    return markdown([*heads, "Pause, median", "Longest"], rows)


def _is_well(result: Mapping[str, Any]) -> bool:
    """Return whether nothing was lost or wrong; connections break only with a front door."""
    may_break = FAULTS[result["drill"]] is kill_front_door
    return not (result["num_lost"] or result["num_wrong"] or (result["num_broken"] and not may_break))


def _drill(
    place: Place, crowd: Crowd, fault: Callable[[Place, int], None], num_requests: int
) -> dict[str, Any]:
    """Let something happen to each server or front door in turn, and say what clients noticed.

    Args:
        place: The servers.
        crowd: The clients.
        fault: What happens, until everything is as it was.
        num_requests: It happens until clients have sent this many requests.
    """
    sessions = [place.sessions_of(number, _NUM_CLIENTS) for number in range(NUM_SERVERS)]
    crowd.start([name for names in sessions for name in names])
    faults: list[tuple[float, list[str]]] = []
    while len(crowd.asked) < num_requests or len(faults) < NUM_SERVERS:
        time.sleep(_BETWEEN_S)
        crowd.wait_for_repeats()  # one fault at a time
        number = len(faults) % NUM_SERVERS
        hit = [] if fault is kill_front_door else sessions[number]
        faults.append((time.monotonic(), hit))
        fault(place, number)
    asked = crowd.stop()
    interrupted = [
        each.pause_s(at_s)
        for at_s, names in faults
        for each in asked
        if each.session_id in names and each.is_open(at_s)
    ]
    return {
        **_counts(asked),
        "rounds": len(faults),
        "num_interrupted": len(interrupted),
        **_pauses(interrupted),
    }


def _counts(asked: Sequence[Asked]) -> dict[str, Any]:
    return {
        "num_requests": len(asked),
        "num_broken": sum(each.is_broken for each in asked),
        "num_lost": sum(each.is_right is None for each in asked),
        "num_wrong": sum(each.is_right is False for each in asked),
        "errors": sorted({each.error for each in asked if each.error}),
    }


def _pauses(pauses_s: Sequence[float]) -> dict[str, float | None]:
    return {
        "median_pause_s": statistics.median(pauses_s) if pauses_s else None,
        "longest_pause_s": max(pauses_s, default=None),
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet_drills", description=__doc__)
    parser.add_argument(
        "--num-requests",
        type=int,
        default=1000,
        help="at least this many requests in each drill (%(default)s)",
    )
    parser.add_argument("--drills", nargs="+", choices=FAULTS, default=list(FAULTS), help="(default: all)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
