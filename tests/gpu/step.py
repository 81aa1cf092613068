"""A step of the GPU day: a command with a time limit, and what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.program import EXIT_INCONCLUSIVE, EXIT_PASS
from tests.conftest import REPOSITORY_ROOT

PASSED, INCONCLUSIVE, FAILED, TIMED_OUT, NOT_RUN = "passed", "inconclusive", "failed", "timed out", "not run"
_QUOTED_LINES = 30
_LINE_CHARACTERS = 400
_GRACE_S = 20.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Step:
    """A command of the day.

    Attributes:
        name: Its name in the result, and that of its log.
        shows: What it shows, for the reader of the result.
        command: Program and arguments; the last JSON object that it prints is its finding.
    """

    name: str
    shows: str
    command: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step.

    Attributes:
        state: ``passed``, ``inconclusive``, ``failed``, ``timed out`` or ``not run``.
        reason: Why it has this state; empty if it passed.
        finding: The last JSON object that it printed, or None.
        last_lines: End of its output, if it did not pass.
    """

    step: Step
    state: str
    reason: str = ""
    seconds: float = 0.0
    finding: Any = None
    last_lines: tuple[str, ...] = ()

    @property
    def lets_others_run(self) -> bool:
        """Whether the steps that need this one can run."""
        return self.state in (PASSED, INCONCLUSIVE)

    def as_dict(self) -> dict[str, Any]:
        """This outcome as a JSON object."""
        step = self.step
        return {
            "name": step.name,
            "shows": step.shows,
            "state": self.state,
            "reason": self.reason,
            "seconds": round(self.seconds, 1),
            "limit_s": step.limit_s,
            "command": " ".join(["python", *step.command[1:]]),
            "finding": self.finding,
            "last_lines": list(self.last_lines),
        }


def run_steps(steps: Iterable[Step], logs: Path) -> Iterator[Outcome]:
    """Run steps in order; one that does not pass stops only those that need it."""
    outcomes: dict[str, Outcome] = {}
    for step in steps:
        missing = [name for name in step.needs if not outcomes[name].lets_others_run]
        if missing:
            outcomes[step.name] = Outcome(step, NOT_RUN, f"needs {', '.join(missing)}")
        else:
            outcomes[step.name] = run_step(step, logs)
        yield outcomes[step.name]


def run_step(step: Step, logs: Path) -> Outcome:
    """Run one command, and kill its processes at its limit or at an interrupt."""
    log = logs / f"{step.name}.log"
    began_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            step.command,
            cwd=REPOSITORY_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, which can be killed as a whole
        )
        try:
            code: int | None = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_group(process)
    state, reason = _judged(code, step)
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = text.replace(str(REPOSITORY_ROOT), ".").splitlines()  # results hold no paths of a machine
    quoted = () if state == PASSED else tuple(line[:_LINE_CHARACTERS] for line in lines[-_QUOTED_LINES:])
    return Outcome(step, state, reason, time.monotonic() - began_s, _last_object(lines), quoted)


def _judged(code: int | None, step: Step) -> tuple[str, str]:
    if code is None:
        return TIMED_OUT, f"killed after {step.limit_s:.0f} s"
    if code == EXIT_PASS:
        return PASSED, ""
    return (INCONCLUSIVE if code == EXIT_INCONCLUSIVE else FAILED), f"exit code {code}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a command has left running; a server is a session of its own and stays."""
    for number, wait_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return


def _last_object(lines: Sequence[str]) -> Any:
    for line in reversed(lines):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return None
