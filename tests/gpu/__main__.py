"""The first hour on a GPU: ``make gpu-day`` inside NVIDIA's container.

Builds the smallest recipe, serves it, probes what only a GPU shows, verifies and benches. Each step has a
time limit, and one that fails stops only those that need it. The result file is rewritten after every step.
Exit code 0 if every step passed, 3 if some were inconclusive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions
from pipelines.deploy.gpus import visible_gpus
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import run_directory
from pipelines.errors import DraftproofError
from pipelines.program import EXIT_CODES, EXIT_INCONCLUSIVE, EXIT_PASS, run_program, stopped_by_signals
from tests.conftest import REPOSITORY_ROOT
from tests.gpu.steps import Step, day_steps, stop_step

FORMAT = 2
PASSED, INCONCLUSIVE, FAILED, NOT_RUN = "passed", "inconclusive", "failed", "not run"
_STATES = {EXIT_PASS: PASSED, EXIT_INCONCLUSIVE: INCONCLUSIVE}
_QUOTED_LINES, _LINE_CHARACTERS = 30, 400
_GRACE_S = 20.0  # between SIGTERM and SIGKILL

Outcome = dict[str, Any]
"""A step and what came of it, as the result file has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="name or path of a recipe (%(default)s)")
    parser.add_argument(
        "--output", type=Path, help="result file (default: docs/results/gpu-day-<recipe>.json)"
    )
    options = parser.parse_args(arguments)
    return run_program(lambda: _run_day(options.recipe, options.output))


def _run_day(recipe: str, output: Path | None) -> int:
    name = run_directory(recipe).name
    output = output or REPOSITORY_ROOT / "docs" / "results" / f"gpu-day-{name}.json"
    logs = run_directory(recipe).parent / f"{name}-gpu-day"
    logs.mkdir(parents=True, exist_ok=True)
    context = conditions("tests.gpu", sys.argv[1:], recipe=recipe, gpus=_gpus())
    steps, last = day_steps(recipe, Ports.free()), stop_step(recipe)
    outcomes = {step.name: _outcome(step, NOT_RUN, "not reached") for step in (*steps, last)}

    def note(outcome: Outcome) -> str:
        outcomes[outcome["name"]] = outcome
        verdict = _verdict(outcomes)
        document = {
            "format": FORMAT,
            "verdict": verdict,
            "steps": [*outcomes.values()],
            "conditions": context,
        }
        write_whole(output, json.dumps(document, indent=1) + "\n")
        print(_line(outcome), flush=True)  # afterwards, because the terminal may be gone
        return verdict

    with stopped_by_signals():
        try:
            for outcome in run_steps(steps, logs):
                note(outcome)
        finally:
            verdict = note(run_step(last, logs))
    print(f"result {output}, logs {logs}")
    print(
        json.dumps({"verdict": verdict, "states": {name: each["state"] for name, each in outcomes.items()}})
    )
    return EXIT_CODES[verdict]


def _gpus() -> list[dict[str, Any]]:
    try:
        return [asdict(gpu) for gpu in visible_gpus()]
    except DraftproofError:  # the step "machine" says why
        return []


def _verdict(outcomes: dict[str, Outcome]) -> str:
    states = {outcome["state"] for outcome in outcomes.values()}
    if not states <= {PASSED, INCONCLUSIVE}:
        return "fail"
    return "inconclusive" if INCONCLUSIVE in states else "pass"


def _line(outcome: Outcome) -> str:
    finding = outcome["finding"] or {}
    said = finding.get("finding") or finding.get("error") or finding.get("verdict") or ""
    told = "; ".join(text for text in (outcome["reason"], said) if text)
    return f"{outcome['name']:11} {outcome['state']:12} {outcome['seconds']:7.1f} s  {told}"


def run_steps(steps: Sequence[Step], logs: Path) -> Iterator[Outcome]:
    """Run steps in order; one that does not pass stops only those that need it."""
    done = set[str]()
    for step in steps:
        missing = ", ".join(name for name in step.needs if name not in done)
        outcome = _outcome(step, NOT_RUN, f"needs {missing}") if missing else run_step(step, logs)
        if outcome["state"] in (PASSED, INCONCLUSIVE):
            done.add(step.name)
        yield outcome


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
            code = process.wait(step.limit_s)
            reason = "" if code == EXIT_PASS else f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, reason = -1, f"killed after {step.limit_s:g} s"
        finally:
            _end_group(process)
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = text.replace(str(REPOSITORY_ROOT), ".").splitlines()  # results hold no paths of a machine
    return _outcome(step, _STATES.get(code, FAILED), reason, time.monotonic() - began_s, lines)


def _outcome(step: Step, state: str, reason: str, seconds: float = 0.0, lines: Sequence[str] = ()) -> Outcome:
    """Return an outcome with the last JSON object of the output, and its last lines unless it passed."""
    quoted = [] if state == PASSED else [line[:_LINE_CHARACTERS] for line in lines[-_QUOTED_LINES:]]
    return {
        **{"name": step.name, "shows": step.shows, "state": state, "reason": reason},
        **{"seconds": round(seconds, 1), "limit_s": step.limit_s, "finding": _last_object(lines)},
        **{"command": " ".join(["python", *step.command[1:]]), "last_lines": quoted},
    }


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what a command has left running; a server is a session of its own and stays."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


def _last_object(lines: Sequence[str]) -> Any:
    for line in reversed(lines):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return None


if __name__ == "__main__":
    sys.exit(main())
