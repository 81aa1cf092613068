"""Runs drills: ``python -m tests.drills rollouts`` (``make drills``), or another of ``SETS``.

Exits with 0 if every drill ends as it should. ``--output`` writes all results as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import conditions_line, markdown
from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions
from pipelines.places import RUN
from pipelines.program import EXIT_CODES, stopped_by_signals

FORMAT = 1
SETS = {
    "rollouts": "rollouts",
    "faults": "server_faults",
    "fleet": "fleet_faults",
    "judge": "judge_faults",
    "upstreams": "upstreams",
}
"""Name of a set of drills -> its module, with ``run(options, folder, about)`` and ``COLUMNS``."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    drills = import_module(f"tests.drills.{SETS[options.set]}")
    about = conditions("tests.drills", sys.argv[1:], recipe=options.recipe)
    began_s = time.monotonic()
    RUN.mkdir(exist_ok=True)
    results: list[dict[str, Any]] = []
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="drill-", dir=RUN) as folder,
    ):
        for result in drills.run(options, Path(folder), about):
            results.append(result)
            shown = {
                name: value for name, value in result.items() if value and name not in ("drill", "faults")
            }
            print(
                f"{result['drill']}: {shown}; {'; '.join(result['faults']) or 'as it has to be'}", flush=True
            )
    verdict = "fail" if not results or any(result["faults"] for result in results) else "pass"
    seconds = round(time.monotonic() - began_s)
    if options.output:
        known = {"format": FORMAT, "verdict": verdict, "seconds": seconds}
        document = {**known, "drills": results, "conditions": about}
        write_whole(options.output, json.dumps(document, indent=1) + "\n")
    rows = [[_cell(result[key]) for key in drills.COLUMNS.values()] for result in results]
    print(markdown(list(drills.COLUMNS), rows), conditions_line(about), sep="\n\n")
    print(json.dumps({"verdict": verdict, "seconds": seconds, "drills": len(results)}))
    return EXIT_CODES[verdict]


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} `{name}`" for name, count in value.items()) or "-"
    return "-" if value is None else f"{value:.2f} s" if isinstance(value, float) else str(value)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("set", choices=SETS, help="set of drills")
    parser.add_argument("--recipe", default="demo", help="of the pair of rollouts and faults (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="drills whose name contains it")
    parser.add_argument("--output", type=Path, help="file that gets the results as JSON")
    parser.add_argument("--soak-s", type=float, default=120.0, help="seconds of the soak (%(default)s)")
    parser.add_argument(
        "--num-requests", type=int, default=1000, help="of each drill of a fleet, at least (%(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
