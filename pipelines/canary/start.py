"""Start a rollout, or resume one whose controller has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipelines.canary.controller.control import Controller, Look
from pipelines.canary.controller.earlier_version import set_aside
from pipelines.canary.controller.lock import sole_controller
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.plan import Plan, read_plan
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.triton_world import TritonWorld, find_in_service
from pipelines.canary.controller.world import World
from pipelines.canary.judge.limits import DEFAULT, Limits, read_limits
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.server_address import ServerAddress
from pipelines.errors import CanaryError

MakeWorld = Callable[[Rollout, str], World]
"""Makes the world of a rollout, given the socket of its candidate if that was loaded already."""


def state_file(run_directory: Path) -> Path:
    """Return the path of the state file of a run directory."""
    return run_directory / "canary.sqlite"


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
    state = state_file(run_directory)
    if make_world is None:
        make_world = _server_of(run_directory, host, public_key)
    with sole_controller(state):
        set_aside(state)
        store = Store(state)
        rollout = store.latest()
        if rollout is None or store.progress(rollout).position.phase in ENDED:
            rollout = _new(run_directory, candidate, plan_file)
            world = make_world(rollout, "")
            store.begin(rollout, world.observations_end())
        else:
            _check_same(rollout, candidate)
            world = make_world(rollout, store.progress(rollout).candidate_socket)
        Controller(store, rollout, world).run(show)
        return store.record()


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
    plan = read_plan(plan_file)
    limits = read_limits(plan_file.parent / plan.limits if plan.limits else DEFAULT)
    _check_together(plan, limits)
    now_s = time.time()
    return Rollout(
        canary_id=time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s)),
        recipe_stable=found.stable.name,
        recipe_candidate=candidate,
        began_at_s=now_s,
        plan=plan,
        limits=limits,
        stable_socket=found.stable.socket,
        control_socket=found.stable.control_socket,
        generation=found.generation,
    )


def _check_together(plan: Plan, limits: Limits) -> None:
    bands = {plan.bands.band(num_open) for num_open in (1, plan.bands.medium_from, plan.bands.high_from)}
    if missing := sorted(bands - limits.speed_up.keys()):
        raise CanaryError(
            "a load band has no limit",
            values=", ".join(missing),
            limit=f"speed_up names {', '.join(limits.speed_up)}",
            remedy="add the band to speed_up in the limits; the rollout was not started",
        )
    if plan.max_pairs < limits.min_requests:
        raise CanaryError(
            "no candidate could ever pass",
            values=f"max_pairs={plan.max_pairs}, min_requests={limits.min_requests}",
            limit="max_pairs of at least min_requests, the least number for which a metric is judged",
            remedy="raise max_pairs in the plan or lower min_requests in the limits; nothing was started",
        )


def _check_same(rollout: Rollout, candidate: str) -> None:
    if candidate != rollout.recipe_candidate:
        raise CanaryError(
            "another rollout has not ended",
            values=f"{rollout.canary_id} of {rollout.recipe_candidate}; requested: {candidate}",
            limit="one rollout at a time",
            remedy=f"resume it with CANDIDATE={rollout.recipe_candidate}; to end it, run "
            "'python -m pipelines.canary abort' first",
        )
