"""Simulated pods of a fleet: they come and go, and an address may become that of another pod."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pipelines.canary.controller.control import Controller, Look
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import World
from pipelines.canary.fleet.call import Description
from pipelines.canary.fleet.members import FoundByName
from pipelines.canary.fleet.servers import Servers
from pipelines.errors import ServerUnavailableError
from pipelines.router.arms import ArmSetting, ArmTable, Bands, write_table
from tests.unit.canary.simulated_fleet import FLEET_PLAN, FleetServer
from tests.unit.canary.simulated_world import BEGAN_AT_S, CANDIDATE, CANDIDATE_CONTROL, STABLE, begun
from tests.unit.canary.test_killed import LAX_LIMITS


class Pod(FleetServer):
    """A server whose run directory is new, with the pair of its package.

    Attributes:
        name: Its own name.
        own: Name of the pair of its package.
    """

    def __init__(self, folder: Path, name: str, own: str, now_s: float) -> None:
        super().__init__(folder / name)
        self.name = name
        self.own = own
        self._remember(now_s=now_s)
        if own != STABLE:
            is_candidate = own == CANDIDATE
            self._remember(is_loaded=is_candidate, is_kept=is_candidate, is_settled=True)
            control = CANDIDATE_CONTROL if is_candidate else f"{own}/control"
            write_table(self.arms, _without_rollout(own, control))

    def describe(self) -> Description:
        self._must_be_here()
        table = self.table
        return Description(self.name, "demo", table.stable.socket, self.own, "d", "t", table.generation)


class NamedPod:
    """A pod as a controller sees it, at an address; no other pod is reached there."""

    def __init__(self, fleet: NamedFleet, address: str, name: str) -> None:
        self._fleet, self._address, self._name = fleet, address, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def ask(*given: Any) -> Any:
            pod = self._fleet.pods.get(self._address)
            if pod is None or pod.name != self._name:
                raise ServerUnavailableError("another server has this address", values=self._name)
            return getattr(pod, method)(*given)

        return ask


class NamedFleet:
    """Pods behind a name, with one controller after the other.

    Attributes:
        pods: Pods by address: what DNS says, and what is there.
        store: State of the rollout.
        is_silent: Whether DNS has no answer.
    """

    def __init__(self, folder: Path, num_pods: int = 3) -> None:
        self.pods: dict[str, Pod] = {}
        self.is_silent = False
        self.now_s = BEGAN_AT_S
        self._folder = folder
        self._num_made = 0
        for number in range(num_pods):
            self.add(f"http://10.0.0.{number}:8004")
        self.store = Store(folder / "fleet.sqlite")
        self.rollout = begun(FLEET_PLAN, LAX_LIMITS)
        self.store.begin(self.rollout, {})

    def add(self, address: str, own: str = STABLE) -> Pod:
        """Start a pod at an address, in place of the one there if there is one."""
        self._num_made += 1
        self.pods[address] = Pod(self._folder, f"pod-{self._num_made}", own, self.now_s)
        return self.pods[address]

    def controller(self) -> Controller:
        """Return a new controller, which knows what is in the state file alone."""
        known = self.store.progress(self.rollout).servers

        def world(address: str, name: str, candidate: str) -> World:
            return cast(World, NamedPod(self, address, name))

        find = FoundByName(
            self._look_up, self._describe, world, STABLE, tuple(known), FLEET_PLAN.lease_s, self.clock
        )
        return Controller(self.store, self.rollout, Servers({}, known, find), self.clock)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let requests arrive everywhere."""
        self.now_s += seconds
        for pod in self.pods.values():
            pod.sleep(seconds)

    @property
    def phases(self) -> list[str]:
        """Phases so far."""
        return [each.to_phase for each in self.store.record().transitions]

    @property
    def says(self) -> dict[str, str]:
        """Status of each server."""
        return self.store.record().servers

    def run_until(self, stops: Callable[[Look], bool], controller: Controller) -> Look:
        """Look until a condition holds."""
        for _ in range(300):
            look = controller.look()
            if stops(look):
                return look
            if look.position.phase in ENDED:
                break
            self.sleep(FLEET_PLAN.tick_s)
        raise AssertionError(f"it stays in {self.phases[-1]}: {self.says}")

    def _look_up(self) -> list[str]:
        if self.is_silent:
            raise OSError("no answer")
        return sorted(self.pods)

    def _describe(self, address: str) -> Description:
        if address not in self.pods:
            raise ServerUnavailableError("no agent answers", values=address)
        return self.pods[address].describe()


def _without_rollout(stable: str, control: str) -> ArmTable:
    return ArmTable(
        generation=0,
        canary_id="",
        salt="",
        stable=ArmSetting(stable, 1.0),
        candidate=None,
        control=ArmSetting(control, 0.0),
        shadow=None,
        replays_match="stable",
        bands=Bands(4, 8),
        lease_until_s=0.0,
        slow_after_s=2.0,
    )
