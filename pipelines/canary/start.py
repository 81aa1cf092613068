"""Begins a rollout, or goes on with the one whose controller ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipelines.canary.analysis.limits import DEFAULT, Limits, read_limits
from pipelines.canary.controller import Controller, Look
from pipelines.canary.phases import ENDED
from pipelines.canary.plan import Plan, read_plan
from pipelines.canary.record import RolloutRecord
from pipelines.canary.rollout import Rollout
from pipelines.canary.server_address import ServerAddress
from pipelines.canary.state import Store, sole_controller
from pipelines.canary.triton_world import TritonWorld, find
from pipelines.canary.world import World
from pipelines.errors import CanaryError

MakeWorld = Callable[[Rollout, str], World]
"""From a rollout, and the socket of its candidate if that was loaded already."""


def state_file(run_directory: Path) -> Path:
    """Where the rollouts of a run directory are kept."""
    return run_directory / "canary.sqlite"


def start(
    run_directory: Path,
    candidate: str,
    plan_file: Path,
    show: Callable[[Look], None],
    make_world: MakeWorld | None = None,
    host: str = "",
) -> RolloutRecord:
    """Carry a rollout out to its end.

    Args:
        run_directory: Of the server.
        candidate: Recipe of the new pair.
        plan_file: Read at the beginning only: who goes on keeps to what was begun.
        show: Gets each look.
        make_world: None for the server of the run directory.
        host: Where that server answers if it runs in a container; "" for one started here.

    Raises:
        CanaryError: Another rollout is under way, the candidate is the pair in service, or a file makes no
            sense; nothing has changed.
        DraftproofError: There is no server, or the rollout cannot go on.
    """
    state = state_file(run_directory)
    if make_world is None:
        make_world = _server_of(run_directory, host)
    with sole_controller(state):
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


def _server_of(run_directory: Path, host: str) -> MakeWorld:
    address = ServerAddress.of(run_directory, host)

    def make_world(rollout: Rollout, candidate_socket: str) -> World:
        return TritonWorld(
            run_directory,
            address,
            rollout.stable_socket,
            rollout.recipe_candidate,
            rollout.limits,
            candidate_socket,
        )

    return make_world


def _new(run_directory: Path, candidate: str, plan_file: Path) -> Rollout:
    found = find(run_directory)
    if candidate == found.stable.name:
        raise CanaryError(
            "the candidate is the pair in service",
            values=f"recipe {candidate}",
            limit="another recipe",
            remedy="give CANDIDATE=<recipe> of the new pair; nothing has changed",
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
            remedy="add the band to speed_up in the limits; nothing has begun",
        )
    if plan.max_pairs < limits.min_requests:
        raise CanaryError(
            "no candidate could ever pass",
            values=f"max_pairs={plan.max_pairs}, min_requests={limits.min_requests}",
            limit="max_pairs is min_requests at least: with fewer no loss is judged",
            remedy="raise max_pairs in the plan, or lower min_requests in the limits; nothing has begun",
        )


def _check_same(rollout: Rollout, candidate: str) -> None:
    if candidate != rollout.recipe_candidate:
        raise CanaryError(
            "another rollout has not ended",
            values=f"{rollout.canary_id} of {rollout.recipe_candidate}; asked for: {candidate}",
            limit="one rollout at a time",
            remedy=f"go on with CANDIDATE={rollout.recipe_candidate}, after "
            "'python -m pipelines.canary abort' if it is to end",
        )
