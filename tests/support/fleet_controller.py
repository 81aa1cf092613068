"""Runs the controller of a fleet's rollout: ``python -m tests.support.fleet_controller FLEET_FILE``.

It prints each phase that it enters, or resumes in. The plan is ``plan.yaml`` beside the file.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipelines.canary.controller.control import Look
from pipelines.canary.start import start_fleet


def main(fleet: Path) -> None:
    latest = ""

    def show(look: Look) -> None:
        nonlocal latest
        if look.position.phase != latest:
            latest = look.position.phase
            print(latest, flush=True)

    print("preflight", flush=True)
    start_fleet(fleet, "tiny-new", fleet.with_name("plan.yaml"), show)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
