"""A controller in a process of its own, to be killed: ``python -m tests.drills.controller ORDERS``.

It goes on with the rollout of a run directory, or begins one, and prints each phase that it enters. Its
candidate is rendered from engines that are there, with the fault of the drill.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from build import beside
from build.recipe import parse_recipe
from pipelines.canary import triton_world
from pipelines.canary.candidate import CandidatePair
from pipelines.canary.controller import Look
from pipelines.canary.start import start
from tests.drills.faults import add_fault


def main(orders: dict[str, Any]) -> None:
    def render(recipe: str, run: Path) -> CandidatePair:
        print("preflight", flush=True)
        engines = Path(orders["draft"]), Path(orders["target"])
        record = beside.render_beside(parse_recipe(orders["recipe"], Path(recipe)), *engines, run)
        if orders["fault"]:
            add_fault(run, record.speculative_model, orders["fault"])
        return CandidatePair.read(run, record.speculative_model)

    def show(look: Look) -> None:
        if look.transition is not None:
            print(look.position.phase, flush=True)

    triton_world.render_beside = render  # type: ignore[assignment]
    start(Path(orders["run"]), orders["recipe"]["name"], Path(orders["plan"]), show)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
