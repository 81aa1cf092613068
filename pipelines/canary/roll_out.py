"""Run a rollout to completion, whichever servers it concerns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path

from pipelines.canary.controller.control import Controller, Look
from pipelines.canary.controller.earlier_version import set_aside
from pipelines.canary.controller.lock import sole_controller
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.plan import Plan, read_plan
from pipelines.canary.controller.rollout import Progress, Rollout, ServerState
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.presence import ALONE
from pipelines.canary.fleet.servers import Servers
from pipelines.canary.judge.limits import DEFAULT, Limits, read_limits
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import CanaryError
from pipelines.router.arms import Band

MakeWorld = Callable[[Rollout, str], World]
"""Makes the world of a rollout, given the socket of its candidate if that was loaded already."""

MakeServers = Callable[[Rollout, Progress | None], Servers]
"""Makes the servers of a rollout, given its progress if it has begun."""


def one_server(make_world: MakeWorld) -> MakeServers:
    """Return what makes the server of a rollout of one server."""

    def make(rollout: Rollout, progress: Progress | None) -> Servers:
        world = make_world(rollout, progress.candidate_socket if progress else "")
        if progress is None:
            return Servers.alone(world, {ALONE: ServerState(world.run(), offset=world.observations_end())})
        return Servers.alone(world, progress.servers)

    return make


def roll_out(
    state: Path,
    candidate: str,
    new: Callable[[], Rollout],
    make_servers: MakeServers,
    show: Callable[[Look], None],
    sleep: Callable[[float], None] = time.sleep,
    check: Callable[[], None] = lambda: None,
) -> RolloutRecord:
    """Run a new rollout, or the one that has not ended, to completion.

    Args:
        state: State file.
        candidate: Name of the candidate.
        new: Makes the settings of a new rollout.
        make_servers: Makes the servers of the rollout.
        show: Called with each look.
        sleep: Waits for a number of seconds between two looks.
        check: Called before each decision is stored; raises an error if this controller may not decide.

    Raises:
        CanaryError: Another rollout is running, or a file is invalid; nothing was changed.
        DraftproofError: The rollout cannot continue.
    """
    with sole_controller(state):
        set_aside(state)
        store = Store(state)
        rollout = store.latest()
        if rollout is None or store.progress(rollout).position.phase in ENDED:
            rollout = new()
            servers = make_servers(rollout, None)
            store.begin(rollout, servers.states)
        else:
            _check_same(state, rollout, candidate)
            servers = make_servers(rollout, store.progress(rollout))
        Controller(store, rollout, servers, check=check).run(show, sleep)
        return store.record()


def canary_id_at(now_s: float) -> str:
    """Return the name of a rollout that begins at a unix time."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))


def read_together(plan_file: Path) -> tuple[Plan, Limits]:
    """Read a plan and its limits.

    Raises:
        CanaryError: One of them is invalid, or they do not fit together.
    """
    plan = read_plan(plan_file)
    limits = read_limits(plan_file.parent / plan.limits if plan.limits else DEFAULT)
    _check_together(plan, limits)
    return plan, limits


def _check_together(plan: Plan, limits: Limits) -> None:
    if bool(plan.control_weight) != (limits.speed_up is not None):
        raise CanaryError(
            "the speed-up is judged by requests that the target alone answers",
            values=f"control_weight={plan.control_weight:g}, speed_up={limits.speed_up and 'has limits'}",
            limit="control_weight above 0 if speed_up has limits, and 0 if it is null",
            remedy="correct control_weight in the plan or speed_up in the limits; nothing was started",
        )
    if limits.speed_up is not None:
        _check_bands(plan, limits.speed_up)
    if plan.max_pairs < limits.min_requests:
        raise CanaryError(
            "no candidate could ever pass",
            values=f"max_pairs={plan.max_pairs}, min_requests={limits.min_requests}",
            limit="max_pairs of at least min_requests, the least number for which a metric is judged",
            remedy="raise max_pairs in the plan or lower min_requests in the limits; nothing was started",
        )


def _check_bands(plan: Plan, speed_up: Collection[Band]) -> None:
    bands = {plan.bands.band(num_open) for num_open in (1, plan.bands.medium_from, plan.bands.high_from)}
    if missing := sorted(bands - set(speed_up)):
        raise CanaryError(
            "a load band has no limit",
            values=", ".join(missing),
            limit=f"speed_up names {', '.join(speed_up)}",
            remedy="add the band to speed_up in the limits; the rollout was not started",
        )


def _check_same(state: Path, rollout: Rollout, candidate: str) -> None:
    if candidate != rollout.recipe_candidate:
        raise CanaryError(
            "another rollout has not ended",
            values=f"{rollout.canary_id} of {rollout.recipe_candidate}; requested: {candidate}",
            limit="one rollout at a time",
            remedy=f"resume it with the candidate {rollout.recipe_candidate}; to end it, run "
            f"'python -m pipelines.canary abort --state {state}' first",
        )
