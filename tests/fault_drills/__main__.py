"""Runs all drills with a recipe's pair: ``python -m tests.fault_drills`` (``make drills-faults``).

Exits with 0 if every drill ends as it should. ``--output`` writes all results as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import conditions_line, markdown
from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.program import EXIT_CODES, stopped_by_signals
from tests.fault_drills.broken_files import FILES
from tests.fault_drills.crowds import CROWDS
from tests.fault_drills.deaths import DEATHS, ENDING, REPLACING
from tests.fault_drills.drill import Drill, run_drill
from tests.fault_drills.hostile import HOSTILE
from tests.fault_drills.place import Place
from tests.fault_drills.soak import soak

FORMAT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    context = conditions("tests.fault_drills", sys.argv[1:], recipe=options.recipe)
    began_s = time.monotonic()
    (REPOSITORY_ROOT / ".run").mkdir(exist_ok=True)
    results = []
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="faults-", dir=REPOSITORY_ROOT / ".run") as folder,
    ):
        place = Place(options.recipe, Path(folder))
        try:
            place.learn()
            for drill in _drills(options.soak_s):
                if options.only in drill.name:
                    results.append(run_drill(drill, place))
                    print(_line(results[-1]), flush=True)
        finally:
            place.stop()
    context |= {
        "engines": engine_conditions({"draft": place.draft, "target": place.target}),
        "triton_version": place.triton_version,
    }
    document = {
        "format": FORMAT,
        "verdict": "fail" if any(result["faults"] for result in results) else "pass",
        "seconds": round(time.monotonic() - began_s),
        "num_questions": len(place.questions) + len(place.long_questions),
        "drills": results,
        "conditions": context,
    }
    if options.output:
        write_whole(options.output, json.dumps(document, indent=1) + "\n")
    print(_table(results), conditions_line(context), sep="\n\n")
    print(json.dumps({name: document[name] for name in ("verdict", "seconds")} | {"drills": len(results)}))
    return EXIT_CODES[document["verdict"]]


def _drills(soak_s: float) -> tuple[Drill, ...]:
    return (*DEATHS, *CROWDS, *HOSTILE, *FILES, *REPLACING, ENDING, soak(soak_s))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault_drills", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="of the pair, on the embedded runtime (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="drills whose name contains it")
    parser.add_argument("--soak-s", type=float, default=120.0, help="seconds of the soak (%(default)s)")
    parser.add_argument("--output", type=Path, help="file that gets the results as JSON")
    return parser.parse_args(arguments)


def _table(results: Sequence[dict[str, Any]]) -> str:
    counted = ("drill", "requests", "equal", "wrong", "hung", "lost")
    timed = ("not_ready_s", "ready_s", "last_error_s")
    rows = [
        [
            *(each[name] for name in counted),
            ", ".join(f"{count} `{name}`" for name, count in each["errors"].items()) or "-",
            *("-" if each[name] is None else f"{each[name]:.2f} s" for name in timed),
        ]
        for each in results
    ]
    heads = ["Drill", "Requests", "Equal", "Wrong", "Hung", "Lost", "Errors by class"]
    return markdown([*heads, "Not ready after", "Ready again after", "Last error after"], rows)


def _line(result: dict[str, Any]) -> str:
    said = "; ".join(result["faults"]) or "as it has to be"
    shown = {
        name: result[name]
        for name in ("not_ready_s", "ready_s", "first_error_s", "last_error_s", "gone_s", "errors", "figures")
        if result[name]
    }
    return (
        f"{result['drill']}: {result['equal']} of {result['requests']} equal, {shown}, "
        f"{result['seconds']} s; {said}"
    )


if __name__ == "__main__":
    sys.exit(main())
