"""The drills of a fleet: each fault lasts until all servers and front doors are back.

They use the tests' tiny pair: three servers and two front doors behind HAProxy on this machine. Each client
knows the right answers, and on which server its session is.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import engine_conditions
from tests.drills.doors import NUM_DOORS
from tests.drills.fleet import NUM_SERVERS, Fleet
from tests.drills.network import lost_packets
from tests.drills.openai_clients import Crowd
from tests.integration.conftest import wait_until

COLUMNS = {
    "Drill": "drill",
    "Times": "rounds",
    "Requests": "num_requests",
    "Lost": "num_lost",
    "Wrong": "num_wrong",
    "Sent again": "num_broken",
    "Interrupted streams": "num_interrupted",
    "Pause, median": "median_pause_s",
    "Longest": "longest_pause_s",
}
LASTS_S = 8.0
DRAINS_WITHIN_S = 300.0
_NUM_CLIENTS = 3  # of each server
_BETWEEN_S = 2.0
_STOPPED_S, _RUNNING_S = 0.09, 0.01  # a tenth of its speed
_CHUNK_BYTES = 1 << 16


def kill(fleet: Fleet, number: int) -> None:
    """Kill a server without a warning."""
    os.kill(fleet.servers[number].process.pid, signal.SIGKILL)
    fleet.restore(number)


def hang(fleet: Fleet, number: int) -> None:
    """Stop all processes of a server, and let them go on."""
    _stop_for(fleet.processes(number), LASTS_S)
    fleet.restore(number)


def slow_down(fleet: Fleet, number: int) -> None:
    """Let all processes of a server run for a tenth of the time."""
    processes = fleet.processes(number)
    ends_at_s = time.monotonic() + LASTS_S
    while time.monotonic() < ends_at_s:
        _stop_for(processes, _STOPPED_S)
        time.sleep(_RUNNING_S)
    fleet.restore(number)


def cut_off(fleet: Fleet, number: int) -> None:
    """Lose all packets between a server and the front doors."""
    with lost_packets(fleet.ports[number].grpc):
        time.sleep(LASTS_S)
    fleet.restore(number)


def fill_the_disk(fleet: Fleet, number: int) -> None:
    """Fill the disk on which a server writes its log and its state."""
    filling = fleet.directories[number] / "filling"
    with suppress(OSError), filling.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(_CHUNK_BYTES))
    time.sleep(LASTS_S)
    filling.unlink()
    fleet.restore(number)


def return_with_another_engine(fleet: Fleet, number: int) -> None:
    """Kill a server and start one with another target in its place, which the front doors must not ask."""
    os.kill(fleet.servers[number].process.pid, signal.SIGKILL)
    fleet.start_other(number)
    time.sleep(LASTS_S)
    assert fleet.doors.latest_words(fleet.address(number)) == {"not ready"}
    fleet.servers[number].stop(kill_after_s=0)
    fleet.restore(number)


def drain(fleet: Fleet, number: int) -> None:
    """Tell a server to end, wait until it has, and start it again."""
    process = fleet.servers[number].process
    os.kill(process.pid, signal.SIGTERM)
    has_drained = wait_until(lambda: not process.is_alive, DRAINS_WITHIN_S)
    assert has_drained, f"{fleet.address(number)} has not drained within {DRAINS_WITHIN_S:g} s"
    fleet.restore(number)


def drain_all(fleet: Fleet, number: int) -> None:
    """Drain all servers, one after the other, beginning with one of them."""
    for each in range(NUM_SERVERS):
        drain(fleet, (number + each) % NUM_SERVERS)


def kill_front_door(fleet: Fleet, number: int) -> None:
    """Kill a front door without a warning."""
    fleet.doors.kill(number % NUM_DOORS)
    fleet.doors.restore(number % NUM_DOORS)


def _stop_for(processes: Sequence[int], seconds: float) -> None:
    _send(signal.SIGSTOP, processes)
    time.sleep(seconds)
    _send(signal.SIGCONT, processes)


def _send(number: signal.Signals, processes: Sequence[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)


FAULTS: dict[str, Callable[[Fleet, int], None]] = {
    "a server is killed": kill,
    "a server hangs": hang,
    "a server has a tenth of its speed": slow_down,
    "no packet passes between front doors and a server": cut_off,
    "the disk of a server is full": fill_the_disk,
    "a server comes back with another engine": return_with_another_engine,
    "a server is drained": drain,
    "all servers are restarted, one after the other": drain_all,
    "a front door is killed": kill_front_door,
}


def run(options: argparse.Namespace, folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the drills on one fleet."""
    with Fleet(folder) as fleet:
        crowd = Crowd(fleet.doors.url)
        about["engines"] = engine_conditions({"target": fleet.target})
        for name, fault in FAULTS.items():
            if options.only in name:
                yield {"drill": name, **_drill(fleet, crowd, fault, options.num_requests)}


def _drill(
    fleet: Fleet, crowd: Crowd, fault: Callable[[Fleet, int], None], num_requests: int
) -> dict[str, Any]:
    """Let something happen to each server or front door in turn, and say what clients noticed.

    Args:
        fault: What happens, until everything is as it was.
        num_requests: It happens until clients have sent this many requests.
    """
    sessions = [fleet.sessions_of(number, _NUM_CLIENTS) for number in range(NUM_SERVERS)]
    crowd.start([name for names in sessions for name in names])
    hits: list[tuple[float, list[str]]] = []
    while len(crowd.asked) < num_requests or len(hits) < NUM_SERVERS:
        time.sleep(_BETWEEN_S)
        crowd.wait_for_repeats()  # one fault at a time
        number = len(hits) % NUM_SERVERS
        hits.append((time.monotonic(), [] if fault is kill_front_door else sessions[number]))
        fault(fleet, number)
    asked = crowd.stop()
    pauses_s = [
        each.pause_s(at_s)
        for at_s, names in hits
        for each in asked
        if each.session_id in names and each.is_open(at_s)
    ]
    counts = {
        "num_lost": sum(each.is_right is None for each in asked),
        "num_wrong": sum(each.is_right is False for each in asked),
        "num_broken": sum(each.is_broken for each in asked),
    }
    excused = ("num_broken",) if fault is kill_front_door else ()  # connections break only with a front door
    return {
        **counts,
        "num_requests": len(asked),
        "errors": sorted({each.error for each in asked if each.error}),
        "rounds": len(hits),
        "num_interrupted": len(pauses_s),
        "median_pause_s": statistics.median(pauses_s) if pauses_s else None,
        "longest_pause_s": max(pauses_s, default=None),
        "faults": [f"{name}={count}" for name, count in counts.items() if count and name not in excused],
    }
