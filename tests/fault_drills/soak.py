"""A drill with everything together: clients ask, leave, fuzz and attack while processes are killed."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.attacks.fuzz import fuzz
from tests.fault_drills.asking import CUT, EQUAL, asking
from tests.fault_drills.asking import ask as ask_once
from tests.fault_drills.crowds import cancel, disconnect
from tests.fault_drills.deaths import TRITON
from tests.fault_drills.drill import BUSY, DIED, Drill, Outcome, is_calm
from tests.fault_drills.hostile import attacks
from tests.fault_drills.place import Place

_NUM_ASKING = 8  # and one client each that disconnects, cancels, fuzzes and attacks
_KILL_EVERY_S = 15.0
_KILLED = ("generate", "speculative", "router", "target", TRITON)
_LONG_ATTACKS = ("slow", "64 MiB", "flood", "bomb")  # they take more than a moment


def soak(seconds: float) -> Drill:
    """Return the drill: 12 workers, and a process killed every 15 s.

    Args:
        seconds: The duration.
    """

    def run(place: Place) -> Outcome:
        server = place.server()
        seen, done = Outcome(), threading.Event()
        before_mb = _resident_mb(server.process.pid)
        improper: list[str] = []

        def repeat(work: Callable[[int], object]) -> None:
            for number in itertools.count():
                if done.is_set():
                    return
                work(number)

        every = [each for each in attacks(place) if not any(word in each[0].name for word in _LONG_ATTACKS)]
        damaged = fuzz(place.http, place.grpc, seed=1)

        def spoil(number: int) -> None:
            sent = next(damaged)
            # because a process died
            if not sent.is_proper and "draftproof/engine_failed" not in sent.reply.text:
                improper.append(f"{sent.kind} {sent.number}: {sent.reply}")

        works: tuple[Callable[[int], object], ...] = (
            lambda number: disconnect(place, number, seen.tally),
            lambda number: cancel(place, number, seen.tally),
            spoil,
            lambda number: every[number % len(every)][0].send(every[number % len(every)][1]),
        )
        threads = [threading.Thread(target=repeat, args=[work]) for work in works]
        with asking(place, ("generate", "router", "generate_target"), _NUM_ASKING, seen.tally):
            for thread in threads:
                thread.start()
            num_kills = _kill(place, time.monotonic() + seconds)
            done.set()
            for thread in threads:
                thread.join()
        place.server()
        with place.client() as client:
            for question in place.questions:
                seen.tally.note(time.monotonic(), ask_once(client, question, "generate"))
        seen.metrics_are_true = is_calm(place)
        seen.figures = {
            "kills": num_kills,
            "cut": seen.tally.count(CUT),
            "gateway_grew_mb": _resident_mb(server.process.pid) - before_mb,
        }
        last = [each.outcome for each in seen.tally.heard[-len(place.questions) :]]
        if set(last) != {EQUAL}:
            seen.faults.append(f"afterwards not every answer was equal: {last}")
        seen.faults += [f"an improper answer: {each}" for each in improper[:10]]
        return seen

    return Drill(f"soak of {seconds:.0f} s, 12 workers, a kill every 15 s", run, DIED | BUSY)


def _kill(place: Place, until_s: float) -> int:
    """Kill a process every few seconds, and leave the server time to recover at the end."""
    killed = 0
    while time.monotonic() + _KILL_EVERY_S < until_s:
        victim = place.pids().get(_KILLED[killed % len(_KILLED)])
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
        killed += 1
        time.sleep(_KILL_EVERY_S)
    time.sleep(max(0.0, until_s - time.monotonic()))
    return killed


def _resident_mb(pid: int) -> float:
    num_pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE") / 1e6
