"""The faults of the drills: each lasts until all servers and front doors are back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tests.fleet_drills.doors import NUM_DOORS
from tests.fleet_drills.network import lost_packets
from tests.fleet_drills.place import NUM_SERVERS, Place
from tests.integration.conftest import wait_until

LASTS_S = 8.0
DRAINS_WITHIN_S = 300.0
_STOPPED_S, _RUNNING_S = 0.09, 0.01  # a tenth of its speed
_CHUNK_BYTES = 1 << 16


def kill(place: Place, number: int) -> None:
    """Kill a server without a warning."""
    os.kill(place.servers[number].process.pid, signal.SIGKILL)
    place.restore(number)


def hang(place: Place, number: int) -> None:
    """Stop all processes of a server, and let them go on."""
    _stop_for(place.processes(number), LASTS_S)
    place.restore(number)


def slow_down(place: Place, number: int) -> None:
    """Let all processes of a server run for a tenth of the time."""
    processes = place.processes(number)
    ends_at_s = time.monotonic() + LASTS_S
    while time.monotonic() < ends_at_s:
        _stop_for(processes, _STOPPED_S)
        time.sleep(_RUNNING_S)
    place.restore(number)


def cut_off(place: Place, number: int) -> None:
    """Lose all packets between a server and the front doors."""
    with lost_packets(place.ports[number].grpc):
        time.sleep(LASTS_S)
    place.restore(number)


def fill_the_disk(place: Place, number: int) -> None:
    """Fill the disk on which a server writes its log and its state."""
    filling = place.directories[number] / "filling"
    with suppress(OSError), filling.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(_CHUNK_BYTES))
    time.sleep(LASTS_S)
    filling.unlink()
    place.restore(number)


def return_with_another_engine(place: Place, number: int) -> None:
    """Kill a server and start one with another target in its place, which the front doors must not ask."""
    os.kill(place.servers[number].process.pid, signal.SIGKILL)
    place.start_other(number)
    time.sleep(LASTS_S)
    assert place.doors.latest_words(place.address(number)) == {"not ready"}
    place.servers[number].stop(kill_after_s=0)
    place.restore(number)


def drain(place: Place, number: int) -> None:
    """Tell a server to end, wait until it has, and start it again."""
    process = place.servers[number].process
    os.kill(process.pid, signal.SIGTERM)
    has_drained = wait_until(lambda: not process.is_alive, DRAINS_WITHIN_S)
    assert has_drained, f"{place.address(number)} has not drained within {DRAINS_WITHIN_S:g} s"
    place.restore(number)


def drain_all(place: Place, number: int) -> None:
    """Drain all servers, one after the other, beginning with one of them."""
    for each in range(NUM_SERVERS):
        drain(place, (number + each) % NUM_SERVERS)


def kill_front_door(place: Place, number: int) -> None:
    """Kill a front door without a warning."""
    place.doors.kill(number % NUM_DOORS)
    place.doors.restore(number % NUM_DOORS)


def _stop_for(processes: Sequence[int], seconds: float) -> None:
    _send(signal.SIGSTOP, processes)
    time.sleep(seconds)
    _send(signal.SIGCONT, processes)


def _send(number: signal.Signals, processes: Sequence[int]) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)


FAULTS: dict[str, Callable[[Place, int], None]] = {
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
