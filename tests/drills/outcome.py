"""Defines a drill, its outcome, and the limits that the outcome must meet."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.drills.asking import EQUAL, HUNG, LOST, WRONG, Tally
from tests.drills.place import Place
from tests.drills.watching import Watch, read_metrics

NOTICED_WITHIN_S, REPLACED_WITHIN_S, GONE_WITHIN_S = 2.0, 10.0, 5.0
_CALM_WITHIN_S = 2.0  # for gauges after the last answer, and errors after a recovery

DIED = frozenset({"engine_failed", "process_ended", "server_unavailable"})
BUSY = frozenset({"server_busy"})
"""Classes of typed errors that a fault excuses."""


@dataclass
class Outcome:
    """Measurements of a drill; times in seconds from the fault.

    Attributes:
        tally: The clients' results.
        open_at_fault: The number of open requests at the fault.
        not_ready_s: When the server, or the model that died, was first reported as not ready.
        ready_s: When it was ready again for good.
        first_error_s: When a client first got an error.
        last_error_s: When a client last got an error.
        metrics_are_true: Whether the metrics reported what died and what came back; None where nothing did.
        gone_s: When the ended server's last process and shared memory were gone.
        figures: Further numbers, by what they count.
        faults: What went wrong, as far as the drill itself can tell.
    """

    tally: Tally = field(default_factory=Tally)
    open_at_fault: int | None = None
    not_ready_s: float | None = None
    ready_s: float | None = None
    first_error_s: float | None = None
    last_error_s: float | None = None
    metrics_are_true: bool | None = None
    gone_s: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def set_fault(self, at_s: float, watch: Watch) -> None:
        """Record the times of a fault that the server has recovered from.

        Args:
            at_s: The time of the fault on ``time.monotonic``'s clock.
            watch: What the server reported meanwhile.
        """
        self.open_at_fault = self.tally.num_open(at_s)
        first, good = watch.first_not_ready_s(at_s), watch.ready_for_good_s()
        self.not_ready_s = None if first is None else first - at_s
        self.ready_s = None if good is None else good - at_s
        ends_s = [each.ended_s - at_s for each in self.tally.failed if each.ended_s >= at_s]
        if ends_s:
            self.first_error_s, self.last_error_s = min(ends_s), max(ends_s)


@dataclass(frozen=True)
class Drill:
    """One drill and its limits.

    Attributes:
        name: A short description.
        run: Carries it out.
        excused: Classes of errors that clients may get.
        replaces: Whether something dies or hangs and has to be replaced.
        noticed_s: The time allowed until readiness reports the fault.
        replaced_s: The time allowed until the server has recovered.
    """

    name: str
    run: Callable[[Place], Outcome]
    excused: frozenset[str] = frozenset()
    replaces: bool = False
    noticed_s: float = NOTICED_WITHIN_S
    replaced_s: float = REPLACED_WITHIN_S


def judge(drill: Drill, seen: Outcome) -> list[str]:
    """Return what went wrong; empty if the drill passed."""
    tally = seen.tally
    checks = {
        f"{tally.count(HUNG)} requests hung": tally.count(HUNG) == 0,
        f"{tally.count(WRONG)} answers were wrong": tally.count(WRONG) == 0,
        f"{tally.count(LOST)} streams ended without an error and without the whole answer": not tally.count(
            LOST
        ),
        "nobody got an answer": tally.count(EQUAL) > 0 or not tally.heard,
        f"clients heard {tally.errors}": set(tally.errors) <= drill.excused,
        "the metrics did not tell": seen.metrics_are_true is not False,
        f"something was left {seen.gone_s} s after the end": (seen.gone_s or 0.0) <= GONE_WITHIN_S,
    }
    if drill.replaces:
        noticed_s, ready_s = seen.not_ready_s, seen.ready_s
        last_s = seen.last_error_s or 0.0
        checks |= {
            f"readiness told of it after {noticed_s} s": noticed_s is not None
            and noticed_s <= drill.noticed_s,
            f"the server was whole again after {ready_s} s": ready_s is not None
            and ready_s <= drill.replaced_s,
            f"errors went on until {last_s:.1f} s, beyond readiness": ready_s is None
            or last_s <= ready_s + _CALM_WITHIN_S,
        }
    return [*seen.faults, *(text for text, holds in checks.items() if not holds)]


def is_calm(place: Place) -> bool:
    """Wait until the gauges of open requests are 0; return False if one never gets there."""
    deadline_s = time.monotonic() + _CALM_WITHIN_S
    names = ("draftproof_requests_running", "draftproof_requests_waiting", "draftproof_gateway_requests_open")
    while any(value for (name, _), value in read_metrics(place.ports).items() if name in names):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def run_drill(drill: Drill, place: Place) -> dict[str, Any]:
    """Run a drill and return its entry in the result file."""
    began_s = time.monotonic()
    seen = drill.run(place)
    tally = seen.tally
    times = ("not_ready_s", "ready_s", "first_error_s", "last_error_s", "gone_s")
    told = {name: value for name, value in asdict(seen).items() if name not in ("tally", "faults", *times)}
    return {
        "drill": drill.name,
        "requests": len(tally.heard),
        **{word: tally.count(word) for word in (EQUAL, WRONG, HUNG, LOST, "cut")},
        "errors": tally.errors,
        **told,
        **{name: _rounded(getattr(seen, name)) for name in times},
        "figures": {name: _rounded(value) for name, value in seen.figures.items()},
        "seconds": round(time.monotonic() - began_s, 1),
        "faults": judge(drill, seen),
        "log": _words_of_the_gateway(place.directory / "server.log") if judge(drill, seen) else [],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _words_of_the_gateway(log: Path) -> list[str]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line[:300] for line in lines if "pipelines.triton.gateway" in line][-10:]
