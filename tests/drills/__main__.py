"""Runs all drills with a recipe's pair: ``python -m tests.drills`` (``make drills``).

Exits with 0 if every drill ends as it should. ``--output`` writes all results as JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from benchmarks.harness import conditions_line, markdown
from build.built_pair import measure_pair
from build.engines import build_engines
from build.recipe import load_recipe
from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.program import EXIT_CODES, stopped_by_signals
from tests.drills.drill import DRILLS
from tests.drills.running import Result, as_document, run_drill
from tests.drills.setting import PLAN, Setting, demo_requests, drill_limits
from tests.drills.traffic import NUM_CLIENTS

FORMAT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    context = conditions("tests.drills", sys.argv[1:], recipe=options.recipe)
    setting = _setting(options.recipe)
    context["engines"] = engine_conditions({"draft": setting.draft, "target": setting.target})
    results = []
    for drill in DRILLS:
        if options.only not in drill.name:
            continue
        (REPOSITORY_ROOT / ".run").mkdir(exist_ok=True)
        with (
            stopped_by_signals(),
            tempfile.TemporaryDirectory(prefix="drill-", dir=REPOSITORY_ROOT / ".run") as folder,
        ):
            result = run_drill(drill, setting, Path(folder))
        print(_line(result), flush=True)
        results.append(result)
    context["triton_version"] = results[0].triton_version
    document = {
        "format": FORMAT,
        "verdict": "fail" if any(result.faults for result in results) else "pass",
        "drills": list(map(as_document, results)),
        "num_prompts": len(setting.requests),
        "num_clients": NUM_CLIENTS,
        "draft_length": setting.recipe["serving"].get("num_draft_tokens", "adaptive"),
        "plan": asdict(setting.plan),
        "limits": asdict(setting.limits),
        "conditions": context,
    }
    if options.output:
        write_whole(options.output, json.dumps(document, indent=1) + "\n")
    print(_table(results), conditions_line(context), sep="\n\n")
    print(json.dumps({"verdict": document["verdict"], "drills": len(results)}))
    return EXIT_CODES[document["verdict"]]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="of the pair, on the embedded runtime (%(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="drills whose name contains it")
    parser.add_argument("--output", type=Path, help="file that gets the results as JSON")
    return parser.parse_args(arguments)


def _setting(name: str) -> Setting:
    recipe = load_recipe(name, "embedded")
    engines = build_engines(recipe)
    draft, target = Path(engines["draft"]), Path(engines["target"])
    measure_pair(recipe, draft, target)
    document = yaml.safe_load(recipe.path.read_text(encoding="utf-8"))
    return Setting(document, draft, target, demo_requests(), PLAN, drill_limits())


def _table(results: Sequence[Result]) -> str:
    heads = ["Candidate", "Ended", "Decided in", "Client requests until then", "Seconds"]
    rows = [
        [
            *(each.drill, each.phase.replace("_", " "), each.decided_in, each.num_requests, each.seconds),
            *(each.num_asked, each.num_fallbacks, each.num_lost, each.num_wrong),
        ]
        for each in results
    ]
    return markdown([*heads, "Requests of the drill", "By another arm", "Lost", "Wrong"], rows)


def _line(result: Result) -> str:
    said = "; ".join(result.faults) or "as it has to"
    return (
        f"{result.drill}: {result.phase} ({result.verdict}) in {result.decided_in} after "
        f"{result.num_requests} requests, {result.seconds} s; lost {result.num_lost}, wrong "
        f"{result.num_wrong} of {result.num_asked}; {said}. {result.reason}"
    )


if __name__ == "__main__":
    sys.exit(main())
