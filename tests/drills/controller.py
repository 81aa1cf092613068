"""Runs a rollout controller in a process that a drill can kill: ``python -m tests.drills.controller ORDERS``.

It resumes the rollout of a run directory, or begins one, and prints each phase that it enters. It renders its
candidate from existing engines, with the drill's fault.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from build.recipe import parse_recipe
from build.rendering import second_pair
from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.canary.controller.control import Cycle
from pipelines.canary.start import start
from tests.drills.candidate_faults import add_fault


def main(orders: dict[str, Any]) -> None:
    def render(recipe: str, run: Path, free: int, public_key: None) -> CandidatePair:
        print("preflight", flush=True)
        engines = Path(orders["draft"]), Path(orders["target"])
        record = second_pair.render_second_pair(parse_recipe(orders["recipe"], Path(recipe)), *engines, run)
        if orders["fault"]:
            add_fault(run, record.speculative_model, orders["fault"])
        return CandidatePair.read(run, record.speculative_model)

    def show(cycle: Cycle) -> None:
        if cycle.transition is not None:
            print(cycle.position.phase, flush=True)

    triton_world.render_beside = render  # type: ignore[assignment,attr-defined]
    start(Path(orders["run"]), orders["recipe"]["name"], Path(orders["plan"]), show)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
