"""Tests of the queue of replays: bounded in rate, number and memory, and emptied when they are not wanted."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.router.arms import Arm, ShadowSetting
from pipelines.router.choice import choose
from pipelines.router.engine_answer import EngineAnswer
from pipelines.router.observation import Observation
from pipelines.router.shadow import ShadowTraffic, is_replayed
from tests.unit.router.router_world import chunk_of
from tests.unit.router.virtual_time import run

SETTING = ShadowSetting(share=1.0, max_per_s=1e6, max_in_flight=2, max_queue=3)
OBSERVED = Observation("c1", "r", "stable", 0.0, 0.0, "low")


class Replays:
    """A table whose limits a test changes, and what was replayed under it; a replay takes a second."""

    candidate, canary_id, generation, salt, shadow = "candidate", "c1", 1, "s", SETTING

    def __init__(self, setting: ShadowSetting = SETTING) -> None:
        self.setting: ShadowSetting | None = setting
        self.begun: list[tuple[int, float]] = []
        self.ended: list[int] = []
        self.most_at_once = 0
        self.open: set[int] = set()
        self.numbers = itertools.count()
        self.num_judged = 0

    def shadow_at(self, now_s: float) -> ShadowSetting | None:
        return self.setting

    def read(self) -> Replays:
        return self

    def offer(self, traffic: ShadowTraffic, number: int) -> None:
        traffic.offer(Request(number, self), OBSERVED, self)  # type: ignore[arg-type]

    def begin(self) -> tuple[int, float]:
        number = next(self.numbers)
        self.open.add(number)
        return number, 0.0

    def note(self, number: int, observation: Observation, is_judged: bool) -> None:
        assert observation.is_replay
        self.open.remove(number)
        self.num_judged += is_judged

    @property
    def items(self) -> list[int]:
        return [item for item, _ in self.begun]


@dataclasses.dataclass
class Request:
    number: int
    replays: Replays
    prompt: str = ""
    replay_arms: tuple[Arm, ...] = ("candidate",)

    def __post_init__(self) -> None:
        self.received = EngineAnswer(is_stream=False)
        self.received.add(chunk_of(b"a", 1))

    async def repeat(self, table: object, arm: Arm) -> EngineAnswer:
        replays = self.replays
        replays.begun.append((self.number, asyncio.get_running_loop().time()))
        replays.most_at_once = max(replays.most_at_once, len(replays.open))
        await asyncio.sleep(1.0)
        if self.number < 0:
            raise KeyError("a defect")
        replays.ended.append(self.number)
        return self.received

    async def expected(self, table: object) -> None:
        return None


def shadowed(work: Callable[[ShadowTraffic], Awaitable[None]], replays: Replays) -> ShadowTraffic:
    async def scenario() -> ShadowTraffic:
        shadow = ShadowTraffic(replays, replays.begin, replays.note)  # type: ignore[arg-type]
        await work(shadow)
        await shadow.close()
        return shadow

    shadow = run(scenario())
    assert len(replays.open) == 0
    assert replays.num_judged == len(replays.ended)
    return shadow


def test_the_share_is_kept_and_has_nothing_to_do_with_the_arm() -> None:
    ids = [f"request-{number}" for number in range(20_000)]
    quarter = dataclasses.replace(SETTING, share=0.25)
    repeated = [each for each in ids if is_replayed(quarter, "pepper", each)]
    assert abs(len(repeated) - 5000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5
    num_stable = sum(choose(0.5, "pepper", each) == "stable" for each in repeated)
    assert abs(num_stable - 2500) < 4 * (5000 * 0.25) ** 0.5
    for share, num in ((0.0, 0), (1.0, 100)):
        setting = dataclasses.replace(SETTING, share=share)
        assert sum(is_replayed(setting, "pepper", each) for each in ids[:100]) == num


def test_where_there_is_no_room_the_oldest_goes_and_is_counted() -> None:
    replays = Replays(dataclasses.replace(SETTING, max_in_flight=1))

    async def work(shadow: ShadowTraffic) -> None:
        for item in range(10):
            replays.offer(shadow, item)
        await asyncio.sleep(10.0)

    shadow = shadowed(work, replays)
    assert replays.items == [0, 7, 8, 9]
    assert (shadow.num_begun, shadow.num_dropped) == (4, 6)


def test_a_rate_that_is_raised_holds_at_once() -> None:
    replays = Replays(dataclasses.replace(SETTING, max_per_s=1e-3))

    async def work(shadow: ShadowTraffic) -> None:
        replays.offer(shadow, 0)
        await asyncio.sleep(5.0)
        replays.setting = SETTING
        replays.offer(shadow, 1)
        await asyncio.sleep(5.0)

    shadowed(work, replays)
    assert replays.begun == [(0, 0.0), (1, 5.0)]


def test_when_the_shadow_is_off_nothing_begins_any_more_and_what_waited_is_forgotten() -> None:
    replays = Replays()

    async def work(shadow: ShadowTraffic) -> None:
        for item in range(5):
            replays.offer(shadow, item)
        await asyncio.sleep(0.5)
        replays.setting = None
        await asyncio.sleep(5.0)
        replays.offer(shadow, 5)
        await asyncio.sleep(5.0)

    shadow = shadowed(work, replays)
    assert replays.ended == [0, 2]  # they had begun
    assert (shadow.num_begun, shadow.num_dropped) == (2, 4)


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5])
def test_closing_cancels_what_runs_and_leaves_nothing_behind(after_s: float) -> None:
    replays = Replays(dataclasses.replace(SETTING, max_per_s=1.0))

    async def work(shadow: ShadowTraffic) -> None:
        for item in range(4):
            replays.offer(shadow, item)
        await asyncio.sleep(after_s)
        await shadow.close()
        num_begun = len(replays.begun)
        replays.offer(shadow, 9)
        await asyncio.sleep(50.0)
        assert len(replays.begun) == num_begun
        assert replays.ended == ([0] if after_s > 1 else [])

    shadow = shadowed(work, replays)
    assert shadow.num_begun + shadow.num_dropped == 5


def test_a_replay_that_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    replays = Replays()

    async def work(shadow: ShadowTraffic) -> None:
        for item in (-1, 1, 2):
            replays.offer(shadow, item)
        await asyncio.sleep(5.0)

    shadowed(work, replays)
    assert replays.ended == [1, 2]
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.7, 3.0]), st.booleans()), max_size=40),
    st.sampled_from([0.4, 2.0, 50.0]),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_every_bound_holds_and_every_request_is_repeated_or_counted(
    arrivals: list[tuple[float, bool]], max_per_s: float, max_in_flight: int, max_queue: int
) -> None:
    setting = ShadowSetting(1.0, max_per_s, max_in_flight, max_queue)
    replays = Replays(setting)

    async def work(shadow: ShadowTraffic) -> None:
        for number, (pause_s, is_on) in enumerate(arrivals):
            await asyncio.sleep(pause_s)
            replays.setting = setting if is_on else None
            replays.offer(shadow, number)
            assert len(shadow._waiting) <= max_queue
        replays.setting = setting
        await asyncio.sleep(100.0)

    shadow = shadowed(work, replays)
    times_s = [at_s for _, at_s in replays.begun]
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    assert all(gap_s >= 1 / max_per_s - 1e-9 for gap_s in gaps_s)
    assert replays.most_at_once <= max_in_flight
    assert replays.items == sorted(replays.items)
    assert shadow.num_begun + shadow.num_dropped == len(arrivals)
    assert shadow.num_begun == len(replays.begun) == len(replays.ended)
