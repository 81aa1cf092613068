"""A simulated fleet: servers with traffic that go away, restart and come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.canary.controller.control import Controller, Look
from pipelines.canary.controller.facts import Outcome
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.plan import Plan, Step
from pipelines.canary.controller.state import Store
from pipelines.canary.fleet.servers import Servers
from pipelines.canary.judge.resources import Sample
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import CanaryError, InternalError, ServerUnavailableError
from pipelines.router.arms import ArmTable
from pipelines.router.observation import Observation
from tests.unit.canary.faults import NO_FAULT, Fault
from tests.unit.canary.simulated_world import CANDIDATE, PLAN, STABLE, SimulatedWorld, begun
from tests.unit.canary.test_killed import LAX_LIMITS

NAMES = ("http://a:8004", "http://b:8004", "http://c:8004")
FLEET_PLAN = replace(
    PLAN,
    shadow=replace(PLAN.shadow, min_pairs=20, bake_s=2.0),
    steps=(Step(0.1, 5, 2.0), Step(0.25, 10, 2.0), Step(0.25, 10, 2.0, 0.6), Step(0.25, 10, 2.0, 1.0)),
    watch_s=2.0,
)


class FleetServer(SimulatedWorld):
    """A server that is stricter than a real one: it fails the test when it is asked what it cannot do.

    Attributes:
        is_away: Whether it answers nothing.
        has_defect: Whether its agent fails.
        pair: Pair in service, if it is not the rollout's; else "".
        engines: Name of the candidate that it finds under the recipe.
        num_brought_up: How often the candidate was loaded.
    """

    def __init__(self, folder: Path, fault: Fault = NO_FAULT, broken: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, fault, broken)
        self.is_away = False
        self.has_defect = False
        self.pair = ""
        self.engines = CANDIDATE
        self.num_brought_up = 0
        self._number = 1
        self._is_checked = False

    def restart(self) -> None:
        """Start again: only what is loaded at the start is there."""
        self._number += 1
        self._is_checked = False
        self._remember(is_loaded=self.state["is_kept"])

    def run(self) -> str:
        self._must_be_here()
        if self.has_defect:
            raise InternalError("an agent failed")
        if self.pair:
            raise CanaryError("this server has another pair in service", values=self.pair)
        return f"run {self._number}"

    def preflight(self) -> Outcome:
        self._must_be_here()
        self._is_checked = True
        found = super().preflight()
        evidence = {**found.evidence, "socket": self.engines, "engines": f"draft of {self.engines}"}
        return replace(found, evidence=evidence)

    def load(self) -> Outcome:
        self._must_be_here()
        self.num_brought_up += 1
        return super().load()

    def probe(self) -> Outcome:
        self._must_be_here()
        assert self.state["is_loaded"], "probed before it was loaded"
        return super().probe()

    def unload(self) -> str:
        self._must_be_here()
        return super().unload()

    def keep(self) -> Outcome:
        self._must_be_here()
        assert self.state["is_loaded"], "kept without being loaded"
        return super().keep()

    def settle(self) -> Outcome:
        self._must_be_here()
        assert self.state["is_kept"], "settled without being kept"
        return super().settle()

    def write(self, table: ArmTable) -> None:
        self._must_be_here()
        sockets = {each.socket for each in table.settings.values()}
        assert CANDIDATE not in sockets or self.state["is_loaded"], "requests for a missing candidate"
        assert STABLE not in sockets or not self.state["is_settled"], "requests for a pair that is gone"
        super().write(table)

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        self._must_be_here()
        return super().observations(offset)

    def observations_end(self) -> int:
        self._must_be_here()
        return super().observations_end()

    def sample(self) -> Sample:
        self._must_be_here()
        assert self.state["is_loaded"], "measured without a candidate"
        return super().sample()

    def listener(self, socket: str) -> int | None:
        self._must_be_here()
        return super().listener(socket)

    @property
    def has_candidate(self) -> bool:
        """Whether clients may be answered by the candidate, or replayed on it."""
        return self.table.candidate is not None and self.clock() < self.table.lease_until_s

    def _must_be_here(self) -> None:
        if self.is_away:
            raise ServerUnavailableError("no agent answers", values=self.folder.name)


class SimulatedFleet:
    """Three servers with one controller after the other.

    Attributes:
        servers: Servers in the order in which they get the candidate.
        store: State of the rollout.

    Args:
        folder: Folder for the servers and the state.
        faults: Faults of the candidate on each server.
        plan: Plan of the rollout.
    """

    def __init__(
        self, folder: Path, faults: Sequence[Fault] = (NO_FAULT,) * 3, plan: Plan = FLEET_PLAN
    ) -> None:
        self.servers = [FleetServer(folder / f"{number}", fault) for number, fault in enumerate(faults)]
        self.store = Store(folder / "fleet.sqlite")
        self._rollout = begun(plan, LAX_LIMITS)
        self.store.begin(self._rollout, {})

    @property
    def record(self) -> RolloutRecord:
        """Record of the rollout."""
        return self.store.record()

    @property
    def phases(self) -> list[str]:
        """Phases so far."""
        return [each.to_phase for each in self.record.transitions]

    def controller(self) -> Controller:
        """Return a new controller, which knows what is in the state file alone."""
        worlds: dict[str, Any] = dict(zip(NAMES, self.servers, strict=True))
        servers = Servers(worlds, self.store.progress(self._rollout).servers)
        return Controller(self.store, self._rollout, servers, self.servers[0].clock)

    def sleep(self, seconds: float) -> None:
        """Let requests arrive everywhere."""
        for server in self.servers:
            server.sleep(seconds)

    def give(self, order: Any) -> None:
        """Give an order."""
        self.store.give(self._rollout, order)

    def run(self, act: Callable[[Look], None] = lambda look: None) -> RolloutRecord:
        """Run the rollout to its end."""
        self.controller().run(act, self.sleep)
        return self.record

    def run_until(self, stops: Callable[[Look], bool], controller: Controller | None = None) -> Look:
        """Look until a condition holds, and leave the controller as if it had been killed then."""
        controller = controller or self.controller()
        for _ in range(2000):
            look = controller.look()
            if stops(look):
                return look
            if look.position.phase in ENDED:
                break
            self.sleep(FLEET_PLAN.tick_s)
        raise AssertionError(f"it stays in {self.phases[-1]}: {self.record.servers}")
