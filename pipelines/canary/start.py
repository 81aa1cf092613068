"""Start a rollout of a new pair in a server, or resume one whose controller has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipelines.canary.controller.control import Look
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.triton_world import TritonWorld, find_in_service
from pipelines.canary.controller.world import World
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.roll_out import MakeWorld, canary_id_at, read_together, roll_out
from pipelines.canary.run_files import state_file
from pipelines.canary.server_address import ServerAddress
from pipelines.errors import CanaryError


def start(
    run_directory: Path,
    candidate: str,
    plan_file: Path,
    show: Callable[[Look], None],
    make_world: MakeWorld | None = None,
    host: str = "",
    public_key: Path | None = None,
) -> RolloutRecord:
    """Run a rollout to completion.

    Args:
        run_directory: Run directory of the server.
        candidate: Recipe of the new pair, or path of its package.
        plan_file: Plan, which is read at the start; a resumed rollout keeps its plan.
        show: Called with each look.
        make_world: Makes the world; None for the server of the run directory.
        host: Host of that server if it runs in a container; "" for one started here.
        public_key: PEM file of the key that must have signed a package; None to accept any package.

    Raises:
        CanaryError: Another rollout is running, the candidate is the pair in service, or a file is invalid;
            nothing was changed.
        DraftproofError: There is no server, or the rollout cannot continue.
    """
    if make_world is None:
        make_world = _server_of(run_directory, host, public_key)

    def new() -> Rollout:
        return _new(run_directory, candidate, plan_file)

    return roll_out(state_file(run_directory), candidate, new, make_world, show)


def _server_of(run_directory: Path, host: str, public_key: Path | None) -> MakeWorld:
    address = ServerAddress.of(run_directory, host)

    def make_world(rollout: Rollout, candidate_socket: str) -> World:
        return TritonWorld(
            run_directory,
            address,
            rollout.stable_socket,
            rollout.recipe_candidate,
            rollout.limits,
            candidate_socket,
            public_key,
        )

    return make_world


def _new(run_directory: Path, candidate: str, plan_file: Path) -> Rollout:
    found = find_in_service(run_directory)
    if candidate == found.stable.name:
        raise CanaryError(
            "the candidate is the pair in service",
            values=f"recipe {candidate}",
            limit="another recipe",
            remedy="set CANDIDATE to the recipe of the new pair; nothing was changed",
        )
    plan, limits = read_together(plan_file)
    now_s = time.time()
    return Rollout(
        canary_id=canary_id_at(now_s),
        recipe_stable=found.stable.name,
        recipe_candidate=candidate,
        began_at_s=now_s,
        plan=plan,
        limits=limits,
        stable_socket=found.stable.socket,
        control_socket=found.stable.control_socket,
        generation=found.generation,
    )
