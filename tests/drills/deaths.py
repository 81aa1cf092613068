"""Drills in which processes of a server are killed or stopped while clients ask."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence

from pipelines.deploy.server import Server
from pipelines.triton.supervision.heartbeat import HANGS_AFTER_S, INTERVAL_S
from tests.drills.asking import EQUAL, asking
from tests.drills.asking import ask as ask_once
from tests.drills.outcome import DIED, REPLACED_WITHIN_S, Drill, Outcome, is_calm
from tests.drills.place import Place
from tests.drills.watching import HEALTH, Figures, Watch, ready_path

_BEFORE_S = 1.0  # of traffic before the fault
_ANSWERED_WITHIN_S = 10.0  # after a recovery
_PATIENCE_S = 40.0
_TOLD_WITHIN_S = 1.0  # in the metrics; the next limit is for a process that hangs
_HANG_TOLD_WITHIN_S = 2.5
_UNCERTAIN_S = 0.5  # between two reads of the metrics on a busy machine
_STOPPED_S = 20.0
_REPETITIONS = 3

TRITON = "triton"
_ANSWERS = "draftproof_model_answers"


def _dies(asked: Sequence[str], killed: str, number: int = signal.SIGKILL) -> Callable[[Place], Outcome]:
    """Make a drill in which a process of the server gets a signal.

    Args:
        killed: The model whose process gets the signal, or ``TRITON``.
        number: SIGKILL; or SIGSTOP, followed by SIGCONT 20 s later.
    """

    def run(place: Place) -> Outcome:
        place.server()
        before, left = place.pids(), place.left_behind()
        is_stopped = number == signal.SIGSTOP
        seen = Outcome()
        watched = asked if killed == TRITON else (killed,)
        with Watch(place.ports, watched) as watch, asking(place, asked, tally=seen.tally):
            time.sleep(_BEFORE_S)
            at_s = time.monotonic()
            os.kill(before[killed], number)
            timer = threading.Timer(_STOPPED_S, _continue, [before[killed]])
            if is_stopped:
                timer.start()
            watch.wait(False, _PATIENCE_S)
            watch.wait(True, _PATIENCE_S)
            _wait_for_an_answer(seen)
            timer.cancel()
        seen.set_fault(at_s, watch)
        after = place.pids()
        changed = {name for name in before if after.get(name) != before[name]}
        expected = set(before) if killed == TRITON else {killed}
        seen.metrics_are_true = is_calm(place) and _told(
            watch.metrics,
            killed,
            at_s + (_HANG_TOLD_WITHIN_S if is_stopped else _TOLD_WITHIN_S),
            (watch.back_s(HEALTH if killed == TRITON else ready_path(killed), at_s) or at_s) - _UNCERTAIN_S,
        )
        if changed != expected or set(after) != set(before):
            seen.faults.append(f"other processes were replaced than {expected}: {changed}, now {set(after)}")
        # Triton keeps the memory of a process that died with open requests, because it waits for their
        # answers.
        seen.figures["regions_kept"] = place.left_behind() - left
        if seen.figures["regions_kept"] > 1:
            seen.faults.append(f"{place.left_behind()} processes and regions of memory, {left} before")
        return seen

    return run


def _wait_for_an_answer(seen: Outcome) -> None:
    """Let the clients continue until one that asked after the recovery is answered."""
    ready_s = time.monotonic()
    while not seen.tally.count(EQUAL, sent_after_s=ready_s):
        if time.monotonic() > ready_s + _ANSWERED_WITHIN_S:
            seen.faults.append("nobody was answered after the recovery")
            return
        time.sleep(0.05)


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it was replaced
        os.kill(pid, signal.SIGCONT)


def _told(metrics: list[tuple[float, Figures]], killed: str, from_s: float, until_s: float) -> bool:
    """Return whether the metrics never reported a dead process as answering between two moments."""
    between = [figures for at_s, figures in metrics if from_s <= at_s <= until_s]
    if killed == TRITON:
        return not any(name == _ANSWERS and value for each in between for (name, _), value in each.items())
    return not any(each.get((_ANSWERS, killed)) for each in between)


def _gateway_dies(place: Place) -> Outcome:
    """Kill the gateway and restart it, as a service manager would, while clients ask."""
    server = place.server()
    seen = Outcome()
    with Watch(place.ports, ("generate",)) as watch, asking(place, ("generate",), tally=seen.tally):
        time.sleep(_BEFORE_S)
        at_s = time.monotonic()
        os.kill(server.process.pid, signal.SIGKILL)
        seen.gone_s = place.seconds_until_nothing_is_left()
        Server.start(place.directory, place.ports)
        watch.wait(True, _PATIENCE_S)
        _wait_for_an_answer(seen)
    seen.set_fault(at_s, watch)
    seen.metrics_are_true = is_calm(place)
    return seen


def _measure_both(model: str) -> Callable[[Place], Outcome]:
    """Make a drill that times two ways of replacing a dead process: its model alone, and all of Triton."""

    def run(place: Place) -> Outcome:
        place.stop()  # the restarts that one server is allowed
        place.server()
        alone = [_seconds_until_answered(place, model, ()) for _ in range(_REPETITIONS)]
        whole = [_seconds_until_answered(place, model, (TRITON,)) for _ in range(_REPETITIONS)]
        place.stop()
        seen = Outcome()
        seen.figures = {
            "unload_and_load_s": statistics.median(alone),
            "restart_of_triton_s": statistics.median(whole),
        }
        seen.faults = [
            f"{name}: {seconds:.1f} s"
            for name, seconds in seen.figures.items()
            if seconds > REPLACED_WITHIN_S
        ]
        return seen

    return run


def _seconds_until_answered(place: Place, model: str, more: Sequence[str]) -> float:
    """Kill a model's process, and others, and return the seconds until clients are answered again."""
    pids = place.pids()
    asked = "router" if model == "router" else "generate"
    with place.client() as client:
        began_s = time.monotonic()
        for name in (model, *more):
            os.kill(pids[name], signal.SIGKILL)
        while ask_once(client, place.questions[0], asked) != EQUAL:
            if time.monotonic() - began_s > _PATIENCE_S:
                return float("inf")
            time.sleep(0.02)
        seconds = time.monotonic() - began_s
    place.server()
    return seconds


def _ends(place: Place) -> Outcome:
    """Stop a server while it answers eight long requests."""
    server = place.server()
    seen = Outcome()

    def stream(number: int) -> None:
        with place.client(number) as client:
            sent_s = time.monotonic()
            seen.tally.note(sent_s, ask_once(client, place.long_questions[number], "generate"))

    threads = [threading.Thread(target=stream, args=[number]) for number in range(len(place.long_questions))]
    for thread in threads:
        thread.start()
    time.sleep(_BEFORE_S)
    at_s = time.monotonic()
    was_well = server.stop()
    seen.gone_s = place.seconds_until_nothing_is_left()
    seen.figures["stopped_s"] = time.monotonic() - at_s
    for thread in threads:
        thread.join()
    seen.open_at_fault = seen.tally.num_open(at_s)
    seen.figures["equal_of_open"] = seen.tally.count(EQUAL)
    if not was_well:
        seen.faults.append("the server had to be killed")
    return seen


def _killed(killed: str, *asked: str, excused: frozenset[str] = DIED) -> Drill:
    of = "" if asked == (killed,) else f", clients of {' and '.join(asked)}"
    return Drill(f"SIGKILL of {killed}{of}", _dies(asked, killed), excused, replaces=True)


def _stopped(stopped: str) -> Drill:
    return Drill(
        f"SIGSTOP of {stopped} for {_STOPPED_S:.0f} s",
        _dies(("generate",), stopped, signal.SIGSTOP),
        DIED,
        replaces=True,
        replaced_s=INTERVAL_S + HANGS_AFTER_S + REPLACED_WITHIN_S,
    )


DEATHS = (
    _killed("router", "generate", "router"),
    _killed("speculative", "generate"),
    _killed("speculative", "router", excused=frozenset()),
    _killed("speculative", "generate_target"),
    _killed(TRITON, "generate", "router"),
    Drill("SIGKILL of the gateway, then a restart", _gateway_dies, DIED | {"connection"}, replaces=True),
    _stopped("speculative"),
    _stopped("router"),
)
REPLACING = tuple(
    Drill(f"{model}: reloading the model, and restarting Triton", _measure_both(model))
    for model in ("router", "speculative")
)
ENDING = Drill("a stop with 8 open streams", _ends)
