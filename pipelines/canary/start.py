"""Start a rollout of one server or of a fleet, or resume one whose controller has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.canary.controller.control import Look
from pipelines.canary.controller.plan import Plan
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.triton_world import TritonWorld, find_in_service
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.call import control_of
from pipelines.canary.fleet.fleet import Fleet
from pipelines.canary.fleet.fleet_file import FleetFile, fleet_state_file
from pipelines.canary.fleet.kubernetes_lease import Lease, LeaseApi
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.roll_out import MakeWorld, canary_id_at, one_server, read_together, roll_out
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
    """Run a rollout of one server to completion.

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
        found = find_in_service(run_directory)
        pair = found.stable
        return _new(pair.name, pair.socket, pair.control_socket, found.generation, candidate, plan_file)

    return roll_out(state_file(run_directory), candidate, new, one_server(make_world), show)


def start_fleet(
    fleet_file: Path,
    candidate: str,
    plan_file: Path,
    show: Callable[[Look], None],
    say: Callable[[str], None] = print,
) -> RolloutRecord:
    """Run a rollout on a fleet to completion.

    Args:
        fleet_file: YAML file that names the agents, and where the state is (``fleet_state_file``).
        candidate: Recipe of the new pair, or path of its package, on each server.
        plan_file: Plan, whose last step must reach all servers; a resumed rollout keeps its plan.
        show: Called with each look.
        say: Called with a line while another controller holds the Lease of the fleet.

    Raises:
        LeaseLostError: Another controller may decide now.
        CanaryError: As ``start``; also if the servers have different pairs, or fewer than a majority answer.
    """

    def new() -> Rollout:
        found = fleet.find_in_service()
        name, generation = found.fingerprint, found.generation
        rollout = _new(found.name, name, control_of(name), generation, candidate, plan_file)
        _check_reaches_all(rollout.plan)
        return rollout

    with _sole_controller(FleetFile.read(fleet_file), say) as check:
        fleet = Fleet.read(fleet_file, check)
        state = fleet_state_file(fleet_file)
        return roll_out(state, candidate, new, fleet.servers, show, check=check)


@contextmanager
def _sole_controller(fleet: FleetFile, say: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Hold the Lease of a fleet if it has one; yields what checks that it is still held."""
    if not fleet.lease:
        yield lambda: None
        return
    lease = Lease(LeaseApi.of_pod(fleet.lease))
    with lease.held(lambda holder: say(f"waiting for the Lease {fleet.lease}, which {holder} has")):
        yield lease.check


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


def _new(
    stable: str, socket: str, control_socket: str, generation: int, candidate: str, plan_file: Path
) -> Rollout:
    if candidate == stable:
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
        recipe_stable=stable,
        recipe_candidate=candidate,
        began_at_s=now_s,
        plan=plan,
        limits=limits,
        stable_socket=socket,
        control_socket=control_socket,
        generation=generation,
    )


def _check_reaches_all(plan: Plan) -> None:
    if plan.steps[-1].servers < 1:
        raise CanaryError(
            "the plan never reaches all servers",
            values=f"servers={plan.steps[-1].servers:g} in the last step",
            limit="1, because the candidate is promoted on all servers after that step",
            remedy="use such a plan, as pipelines/canary/controller/canary-fleet.yaml; nothing was started",
        )
