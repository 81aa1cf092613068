"""Runs a controller in a process that tests can kill.

``python -m tests.unit.canary.rollout_process FOLDER FAULT PAUSE`` resumes the folder's rollout, or begins
one, pauses in a phase, and prints each phase before it acts on it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.orders import sole_controller
from pipelines.canary.controller.state import Store
from tests.unit.canary.faults import NO_FAULT, less_accepted
from tests.unit.canary.simulated_world import SimulatedWorld, begun, controller_of

FAULTS = {"none": NO_FAULT, "acceptance": less_accepted(0.5)}


def main(folder: Path, fault: str, pause_in: str) -> None:
    world = SimulatedWorld(folder, FAULTS[fault])
    with sole_controller(folder / "canary.sqlite"):
        store = Store(folder / "canary.sqlite")
        rollout = store.latest()
        if rollout is None:
            rollout = begun()
            store.begin(rollout)

        def show(cycle: Cycle) -> None:
            if cycle.transition is not None and cycle.position.phase == pause_in:
                store.give(rollout, "pause")
            print(cycle.position.phase, flush=True)
            time.sleep(0.01)

        print("preflight", flush=True)
        controller_of(store, rollout, world).run(show, world.sleep)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
