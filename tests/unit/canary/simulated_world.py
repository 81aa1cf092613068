"""A simulated server with router and traffic, kept in files that survive a killed controller.

Requests arrive continuously and go where the table of arms sends them; their answers are drawn from recorded
ones.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from pipelines.canary.controller.control import Controller, Cycle
from pipelines.canary.controller.phases import Order
from pipelines.canary.controller.plan import Plan, Shadow, Step
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import PhaseResult
from pipelines.canary.judge.limits import Limit, Limits
from pipelines.canary.judge.resources import Sample, Taken
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import CanaryError, RepositoryError, ServerUnavailableError
from pipelines.router.arms import Arm, ArmTable, Band, Bands, read_table, write_table
from pipelines.router.observation import Divergence, Observation
from pipelines.router.observation_log import append, log_end, read_observations
from tests.unit.canary.faults import NO_FAULT, Fault
from tests.unit.canary.requests import limits, recorded_traffic

BEGAN_AT_S = 1_700_000_000.0
STABLE, CANDIDATE = "run/stable.sock", "run/candidate.sock"
SETTLED = "run/settled.sock"
PER_S = 25

_EASY = Limit(0.25, 0.25)
EASY_LIMITS = limits(
    quantile=0.9,
    answers=Limit(0.05, 0.01),
    errors=Limit(0.05, 0.005),
    timeouts=Limit(0.05, 0.005),
    goodput=Limit(0.2, 0.1),
    acceptance_rate=Limit(0.2, 0.1),
    ttft=_EASY,
    itl=_EASY,
    e2e_tail=Limit(0.9, 0.2),
    resources_s=10.0,
)

PLAN = Plan(
    limits="",
    slo_ttft_s=0.2,
    slo_itl_s=0.01,
    bands=Bands(4, 8),
    slow_after_s=2.0,
    shadow=Shadow(0.5, 20.0, 2, 16, min_pairs=50, bake_s=6.0),
    steps=(Step(0.1, 20, 6.0), Step(0.25, 50, 6.0)),
    hold_s=60.0,
    idle_s=60.0,
    max_pairs=4000,
    down_after_s=3.0,
    drain_s=4.0,
    watch_s=6.0,
    lease_s=10.0,
    tick_s=2.0,
)


def begun(plan: Plan = PLAN, by: Limits = EASY_LIMITS, canary_id: str = "c1") -> Rollout:
    return Rollout(canary_id, "demo", "demo-int8", BEGAN_AT_S, plan, by, STABLE, 0)


def begin(folder: Path, plan: Plan = PLAN, by: Limits = EASY_LIMITS, canary_id: str = "c1") -> None:
    with contextlib.closing(Store(folder / "canary.sqlite")) as store:
        store.begin(begun(plan, by, canary_id))


def give(folder: Path, order: Order) -> None:
    """Give an order for the latest rollout of a folder."""
    with contextlib.closing(Store(folder / "canary.sqlite")) as store:
        rollout = store.latest()
        assert rollout is not None
        store.give(rollout, order)


def controller_of(store: Store, rollout: Rollout, world: SimulatedWorld) -> Controller:
    return Controller(store, rollout, world, world.clock)


def roll_out(world: SimulatedWorld, act: Callable[[Cycle], None] = lambda cycle: None) -> RolloutRecord:
    """Continue the latest rollout of a world's folder until it ends."""
    with contextlib.closing(Store.existing(world.folder / "canary.sqlite")) as store:
        rollout = store.latest()
        assert rollout is not None
        controller_of(store, rollout, world).run(act, world.sleep)
        return store.record()


@dataclass
class SimulatedWorld:
    """A simulated world in a folder; another instance with the same folder continues with its state.

    Attributes:
        broken: Names of the operations that fail, such as ``load``.
        crash_at: The candidate's request during which its process ends.
        open_for_s: The duration of requests that are always open.
        asked_by: The number of sessions that send all client requests; None for a session per request.
        leaked_per_s: The bytes that the candidate's process leaks per second.
        process: The process at the candidate's socket; a replaced one has another number.
    """

    folder: Path
    fault: Fault = NO_FAULT
    broken: tuple[str, ...] = ()
    crash_at: int | None = None
    open_for_s: float = 0.0
    asked_by: int | None = None
    leaked_per_s: float = 0.0
    process: int = 1

    def __post_init__(self) -> None:
        self._arms, self._log = self.folder / "arms.json", self.folder / "observations.sqlite"
        self._file = self.folder / "world.json"
        if not self._file.is_file():
            write_table(self._arms, _initial())
            nothing = dict.fromkeys(("is_loaded", "is_settled", "has_failed"), False)
            self._keep({"now_s": BEGAN_AT_S, "number": 0, "candidates": [], **nothing})

    # Called by a controller.

    def preflight(self) -> PhaseResult:
        if "preflight" in self.broken:
            return PhaseResult(False, "the tokenizer is another one", {"tokenizer": "differs"})
        return PhaseResult(True, "all checks pass", {"checks": 5})

    def load(self) -> PhaseResult:
        if "load" in self.broken:
            raise RepositoryError("the pair could not be loaded")
        self._remember(is_loaded=True)
        return PhaseResult(True, "loaded in 4.0 s", {"socket": CANDIDATE, "same_target": True})

    def unload(self) -> str:
        if "unload" in self.broken:
            raise ServerUnavailableError("no server answers")
        assert not self.table.candidate, "unloaded while requests go there"
        self._remember(is_loaded=False)
        return "the second server has ended"

    def settle(self) -> PhaseResult:
        if "settle" in self.broken and not self.state["has_failed"]:
            self._remember(has_failed=True)
            raise RepositoryError("the repository could not be rendered")
        assert self.table.candidate_weight == 1, "restarted while requests go there"
        self._remember(is_settled=True)
        return PhaseResult(True, "the new pair is loaded", {"socket": SETTLED})

    def write(self, table: ArmTable) -> None:
        write_table(self._arms, table)

    def observations(self, offset: int) -> tuple[list[Observation], int]:
        return read_observations(self._log, offset)

    def observations_end(self) -> int:
        return log_end(self._log)

    def sample(self) -> Sample:
        if "sample" in self.broken:
            raise CanaryError("memory and CPU time of both pairs cannot be read")
        now_s = self.clock()
        served_s = now_s - BEGAN_AT_S
        stable = Taken(1e9, served_s, 100 * served_s)
        return Sample(now_s, replace(stable, resident_bytes=1e9 + self.leaked_per_s * served_s), stable)

    def listener(self, socket: str) -> int | None:
        return self.process if self.state["is_loaded"] and not self._has_crashed else None

    # Called by tests.

    @property
    def state(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self._file.read_text(encoding="utf-8")))

    @property
    def table(self) -> ArmTable:
        return read_table(self._arms)

    def clock(self) -> float:
        return float(self.state["now_s"])

    def candidate_requests_since(self, at_s: float) -> int:
        return sum(arrived >= at_s for arrived in self.state["candidates"])

    def sleep(self, seconds: float) -> None:
        """Let requests arrive, one after another."""
        state, table = self.state, self.table
        found: list[Observation] = []
        for index in range(int(seconds * PER_S)):
            found += self._request(state, table, state["now_s"] + (index + 1) / PER_S)
        state["now_s"] += seconds
        append(self._log, found)
        self._keep(state)

    @property
    def _has_crashed(self) -> bool:
        return self.crash_at is not None and len(self.state["candidates"]) >= self.crash_at

    def _keep(self, state: dict[str, Any]) -> None:
        """Write the whole file or nothing: tests kill processes at any moment."""
        staged = self._file.with_suffix(".new")
        staged.write_text(json.dumps(state), encoding="utf-8")
        staged.replace(self._file)

    def _remember(self, **changes: Any) -> None:
        self._keep({**self.state, **changes})

    def _request(self, state: dict[str, Any], table: ArmTable, now_s: float) -> list[Observation]:
        state["number"] += 1
        rng = np.random.default_rng(state["number"])
        weights = table.weights(now_s)
        place = bisect_right([*itertools.accumulate(weights.values())], rng.random())
        arm: Arm = list(weights)[min(place, len(weights) - 1)]
        if arm == "candidate" or table.stable == SETTLED:
            state["candidates"].append(now_s)
        common: dict[str, Any] = {
            "canary_id": table.canary_id,
            "request_id": f"request-{state['number']}",
            "session_id": "" if self.asked_by is None else f"s{state['number'] % self.asked_by}",
            "oldest_open_at_s": now_s - self.open_for_s,
            "band": list(_pools())[rng.integers(len(_pools()))],
        }
        if arm == "candidate" and self.crash_at is not None and len(state["candidates"]) > self.crash_at:
            failed = {"fallback_from": ("candidate",), "fallback_reasons": ("error",)}
            return [self._observed("stable", common, now_s, rng, **failed)]
        found = [self._observed(arm, common, now_s, rng)]
        shadow = table.shadow_at(now_s)
        if arm == "stable" and shadow is not None and rng.random() < shadow.share:
            found.append(self._observed("candidate", common, now_s + 0.001, rng, is_replay=True))
        return found

    def _observed(
        self, arm: Arm, common: dict[str, Any], now_s: float, rng: np.random.Generator, **more: Any
    ) -> Observation:
        pool, is_replay = _pools()[common["band"]]["stable"], "is_replay" in more
        # that of the request that a replay repeats
        place = zlib.crc32(common["request_id"].encode()) % len(pool)
        drawn = replace(pool[place], arm=arm, arrived_at_s=now_s, **common, **more)
        drawn = replace(drawn, answer="equal" if is_replay else "")
        if arm == "candidate":
            drawn = self.fault.apply(drawn, rng)
        if not is_replay:
            if drawn.failure:
                failed = {"fallback_from": (arm,), "fallback_reasons": (drawn.failure,)}
                return self._observed("stable", common, now_s, rng, **failed)
            return replace(drawn, answer="")
        different = Divergence("1 + 1 =", "stable", "tokens", " 2", " 3", 0)
        differs: Any = {"differs_in": "tokens", "divergence": different} if drawn.answer == "diverged" else {}
        return replace(drawn, num_common_tokens=drawn.num_output_tokens, **differs)


def _initial() -> ArmTable:
    return ArmTable.without_rollout(STABLE, Bands(4, 8), 2.0)


@functools.cache
def _pools() -> dict[Band, dict[str, list[Observation]]]:
    pools: dict[Band, dict[str, list[Observation]]] = {}
    for request in recorded_traffic():
        pools.setdefault(cast(Band, request.band), {}).setdefault(request.arm, []).append(request)
    return pools
