"""The drills of one server, among them one with everything together while processes are killed."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import engine_conditions
from tests.attacks.fuzz import fuzz
from tests.drills.asking import CUT, EQUAL, ask, asking
from tests.drills.broken_files import FILES
from tests.drills.crowds import CROWDS, cancel, disconnect
from tests.drills.deaths import DEATHS, ENDING, REPLACING, TRITON
from tests.drills.hostile import HOSTILE, attacks
from tests.drills.outcome import BUSY, DIED, Drill, Outcome, is_calm, run_drill
from tests.drills.place import Place

COLUMNS = {
    "Drill": "drill",
    "Requests": "requests",
    "Equal": "equal",
    "Wrong": "wrong",
    "Hung": "hung",
    "Lost": "lost",
    "Errors by class": "errors",
    "Not ready after": "not_ready_s",
    "Ready again after": "ready_s",
    "Last error after": "last_error_s",
}
_NUM_ASKING = 8  # and one client each that disconnects, cancels, fuzzes and attacks
_KILL_EVERY_S = 15.0
_KILLED = ("speculative", "router", TRITON)
_LONG_ATTACKS = ("slow", "64 MiB", "flood", "bomb")  # they take more than a moment


def run(options: argparse.Namespace, folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the drills in one place; a server that a drill has left goes on in the next one."""
    place = Place(options.recipe, folder)
    about["engines"] = engine_conditions({"draft": place.draft, "target": place.target})
    try:
        place.learn()
        about["triton_version"] = place.triton_version
        for drill in (*DEATHS, *CROWDS, *HOSTILE, *FILES, *REPLACING, ENDING, _soak(options.soak_s)):
            if options.only in drill.name:
                yield run_drill(drill, place)
    finally:
        place.stop()


def _soak(seconds: float) -> Drill:
    """Return a drill with 12 workers, and a process killed every 15 s."""

    def run(place: Place) -> Outcome:
        server = place.server()
        seen, done = Outcome(), threading.Event()
        before_mb = _resident_mb(server.process.pid)
        improper: list[str] = []
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

        def repeat(work: Callable[[int], object]) -> None:
            for number in itertools.takewhile(lambda _: not done.is_set(), itertools.count()):
                work(number)

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
            last = [ask(client, question, "generate", seen.tally) for question in place.questions]
        seen.metrics_are_true = is_calm(place)
        grown_mb = _resident_mb(server.process.pid) - before_mb
        seen.figures = {"kills": num_kills, "cut": seen.tally.count(CUT), "gateway_grew_mb": grown_mb}
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
