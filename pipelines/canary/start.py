"""Run a rollout to completion: a new one, or one whose controller has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipelines.canary.controller.control import Controller, Cycle
from pipelines.canary.controller.orders import sole_controller
from pipelines.canary.controller.own_servers import OwnServers, served_pair
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.plan import Plan, read_plan
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import World
from pipelines.canary.judge.limits import DEFAULT, Limits, read_limits
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.run_files import arms_file, state_file
from pipelines.deploy.server import find_server
from pipelines.errors import CanaryError
from pipelines.router.arms import read_table


def start(
    run_directory: Path,
    candidate: str,
    plan_file: Path,
    show: Callable[[Cycle], None],
    public_key: Path | None = None,
) -> RolloutRecord:
    """Run a rollout on this machine to completion: between its server and a second one.

    Args:
        run_directory: Run directory of the server in service.
        candidate: Recipe of the new pair, or path of its package.
        plan_file: Plan, which is read at the start; a resumed rollout keeps its plan.
        show: Called with each cycle.
        public_key: PEM file of the key that must have signed a package; None to accept any package.

    Raises:
        CanaryError: Another rollout is running, the candidate is the pair in service, or a file is invalid;
            nothing was changed.
        DraftproofError: There is no server, or the rollout cannot continue.
    """
    if not find_server(run_directory).ports.openai:
        raise CanaryError(
            f"the server of {run_directory} does not serve OpenAI's API, which a candidate is judged by",
            "stop it, and serve the recipe with --openai-port",
        )

    def new() -> Rollout:
        pair, table = served_pair(run_directory), arms_file(run_directory)
        if candidate == pair.name:
            raise CanaryError(
                f"the candidate, recipe {candidate}, is the pair in service",
                "name the recipe of the new pair with --candidate; nothing was changed",
            )
        generation = read_table(table).generation if table.is_file() else 0
        return new_rollout(pair.name, candidate, pair.socket, generation, *read_together(plan_file))

    def make_world(rollout: Rollout) -> World:
        return OwnServers(run_directory, rollout, public_key)

    return roll_out(state_file(run_directory), candidate, new, make_world, show)


def roll_out(
    state: Path,
    candidate: str,
    new: Callable[[], Rollout],
    make_world: Callable[[Rollout], World],
    show: Callable[[Cycle], None],
    sleep: Callable[[float], None] = time.sleep,
) -> RolloutRecord:
    """Run a new rollout, or the one that has not ended, to completion.

    Args:
        state: State file.
        candidate: Name of the candidate.
        new: Makes the settings of a new rollout.
        make_world: Makes the world of the rollout.
        show: Called with each cycle of the controller.
        sleep: Waits for a number of seconds between two cycles.

    Raises:
        CanaryError: Another rollout is running, or a file is invalid; nothing was changed.
        DraftproofError: The rollout cannot continue.
    """
    with sole_controller(state):
        store = Store(state)
        rollout = store.latest()
        if rollout is None or store.progress(rollout).position.phase in ENDED:
            rollout = new()
            world = make_world(rollout)
            store.begin(rollout, world.observations_end())
        else:
            _check_same(state, rollout, candidate)
            world = make_world(rollout)
        Controller(store, rollout, world).run(show, sleep)
        return store.record()


def new_rollout(
    stable: str, candidate: str, stable_socket: str, generation: int, plan: Plan, limits: Limits
) -> Rollout:
    """Return the settings of a rollout that begins now; arguments are those of ``Rollout``."""
    now_s = time.time()
    canary_id = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
    return Rollout(canary_id, stable, candidate, now_s, plan, limits, stable_socket, generation)


def read_together(plan_file: Path) -> tuple[Plan, Limits]:
    """Read a plan and its limits.

    Raises:
        CanaryError: One of them is invalid, or they do not fit together.
    """
    plan = read_plan(plan_file)
    limits = read_limits(plan_file.parent / plan.limits if plan.limits else DEFAULT)
    if plan.max_pairs < limits.min_requests:
        raise CanaryError(
            f"no candidate could ever pass: max_pairs={plan.max_pairs}, min_requests={limits.min_requests}",
            "raise max_pairs in the plan or lower min_requests in the limits; nothing was started",
        )
    return plan, limits


def _check_same(state: Path, rollout: Rollout, candidate: str) -> None:
    if candidate != rollout.recipe_candidate:
        raise CanaryError(
            f"another rollout has not ended: {rollout.canary_id} of {rollout.recipe_candidate}",
            f"resume it with the candidate {rollout.recipe_candidate}; to end it, run "
            f"'draftproof canary abort --state {state}' first",
        )
