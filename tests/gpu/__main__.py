"""The first hour on a GPU: ``make gpu-day`` inside NVIDIA's container.

Builds the smallest recipe, serves it, probes what only a GPU shows, verifies and benches. Each step has a
time limit, and one that fails stops only those that need it. The result file is rewritten after every step.
Exit code 0 if every step passed, 3 if some were inconclusive.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions
from pipelines.deploy.gpus import visible_gpus
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import run_directory
from pipelines.errors import DraftproofError
from pipelines.program import EXIT_CODES, run_program, stopped_by_signals
from tests.conftest import REPOSITORY_ROOT
from tests.gpu.day import day_steps, stop_step
from tests.gpu.step import INCONCLUSIVE, NOT_RUN, PASSED, Outcome, Step, run_step, run_steps

FORMAT = 1


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
    outcomes: list[Outcome] = []

    def note(outcome: Outcome) -> dict[str, Any]:
        outcomes.append(outcome)
        document = _document(outcomes, (*steps, last), context)
        write_whole(output, json.dumps(document, indent=1) + "\n")
        print(_line(outcome), flush=True)  # afterwards, because the terminal may be gone
        return document

    with stopped_by_signals():
        try:
            for outcome in run_steps(steps, logs):
                note(outcome)
        finally:
            document = note(run_step(last, logs))
    print(f"result {output}, logs {logs}")
    print(json.dumps({"verdict": document["verdict"], "states": document["states"]}))
    return EXIT_CODES[document["verdict"]]


def _gpus() -> list[dict[str, Any]]:
    try:
        return [asdict(gpu) for gpu in visible_gpus()]
    except DraftproofError:  # the step "machine" says why
        return []


def _line(outcome: Outcome) -> str:
    finding = outcome.finding if isinstance(outcome.finding, dict) else {}
    said = finding.get("finding") or finding.get("error") or finding.get("verdict") or ""
    told = "; ".join(text for text in (outcome.reason, said) if text)
    return f"{outcome.step.name:11} {outcome.state:12} {outcome.seconds:7.1f} s  {told}"


def _document(outcomes: Sequence[Outcome], steps: Sequence[Step], context: dict[str, Any]) -> dict[str, Any]:
    reached = {outcome.step.name for outcome in outcomes}
    rest = [Outcome(step, NOT_RUN, "not reached") for step in steps if step.name not in reached]
    states = {outcome.step.name: outcome.state for outcome in (*outcomes, *rest)}
    if set(states.values()) <= {PASSED, INCONCLUSIVE}:
        verdict = "inconclusive" if INCONCLUSIVE in states.values() else "pass"
    else:
        verdict = "fail"
    return {
        "format": FORMAT,
        "verdict": verdict,
        "states": states,
        "steps": [outcome.as_dict() for outcome in (*outcomes, *rest)],
        "conditions": context,
    }


if __name__ == "__main__":
    sys.exit(main())
