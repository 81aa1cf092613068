"""Runs a rollout controller in a process that a drill can kill: ``python -m tests.drills.controller ORDERS``.

It resumes the rollout of a run directory, or begins one, and prints each phase that it enters. It renders its
candidate from existing engines, with the drill's fault.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from build.recipe import parse_recipe
from build.repository import render_recipe
from pipelines.canary.controller import own_servers
from pipelines.canary.controller.control import Cycle
from pipelines.canary.start import start
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.server import beside
from tests.drills.candidate_faults import add_fault


def main(orders: dict[str, Any]) -> None:
    stable = Path(orders["run"])

    def render(source: PairSource, run: Path, options: Sequence[str] = ()) -> None:
        if run == beside(stable):
            print("preflight", flush=True)
        recipe, name = parse_recipe(orders["recipe"], Path(source.name)), source.served_model_name
        engines = Path(orders["draft"]), Path(orders["target"])
        render_recipe(recipe, *engines, run.parent, name=run.name, served_model_name=name)
        if orders["fault"]:
            add_fault(run, stable, orders["fault"])

    def show(cycle: Cycle) -> None:
        if cycle.transition is not None:
            print(cycle.position.phase, flush=True)

    own_servers.render = render
    start(stable, orders["recipe"]["name"], Path(orders["plan"]), show)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
