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

from pipelines.router.arms import ShadowSetting
from pipelines.router.choice import choose
from pipelines.router.replays import ReplayQueue, is_replayed
from tests.unit.router.virtual_time import run

SETTING = ShadowSetting(share=0.25, max_per_s=1e6, max_in_flight=2, max_queue=3)


class Replays:
    """Records what was replayed and when; a replay takes a second."""

    def __init__(self) -> None:
        self.setting: ShadowSetting | None = SETTING
        self.begun: list[tuple[int, float]] = []
        self.ended: list[int] = []
        self.most_at_once = 0
        self._num_running = 0

    async def replay(self, item: int) -> None:
        self.begun.append((item, asyncio.get_running_loop().time()))
        self._num_running += 1
        self.most_at_once = max(self.most_at_once, self._num_running)
        try:
            await asyncio.sleep(1.0)
        finally:
            self._num_running -= 1
        self.ended.append(item)

    @property
    def items(self) -> list[int]:
        return [item for item, _ in self.begun]


def shadowed(work: Callable[[ReplayQueue[int]], Awaitable[None]], replays: Replays) -> ReplayQueue[int]:
    async def scenario() -> ReplayQueue[int]:
        shadow = ReplayQueue(lambda: replays.setting, replays.replay)
        await work(shadow)
        await shadow.close()
        return shadow

    return run(scenario())


def test_the_share_is_kept_and_has_nothing_to_do_with_the_arm() -> None:
    ids = [f"request-{number}" for number in range(20_000)]
    repeated = [each for each in ids if is_replayed(SETTING, "pepper", each)]
    assert abs(len(repeated) - 5000) < 4 * (20_000 * 0.25 * 0.75) ** 0.5
    weights = {"stable": 0.5, "candidate": 0.5}
    num_stable = sum(choose(weights, "pepper", each) == "stable" for each in repeated)  # type: ignore[arg-type]
    assert abs(num_stable - 2500) < 4 * (5000 * 0.25) ** 0.5
    for share, num in ((0.0, 0), (1.0, 100)):
        setting = dataclasses.replace(SETTING, share=share)
        assert sum(is_replayed(setting, "pepper", each) for each in ids[:100]) == num


def test_where_there_is_no_room_the_oldest_goes_and_is_counted() -> None:
    replays = Replays()
    replays.setting = dataclasses.replace(SETTING, max_in_flight=1)

    async def work(shadow: ReplayQueue[int]) -> None:
        for item in range(10):
            shadow.offer(item)
        await asyncio.sleep(10.0)

    shadow = shadowed(work, replays)
    assert replays.items == [0, 7, 8, 9]
    assert (shadow.num_begun, shadow.num_dropped) == (4, 6)


def test_a_rate_that_is_raised_holds_at_once() -> None:
    replays = Replays()
    replays.setting = dataclasses.replace(SETTING, max_per_s=1e-3)

    async def work(shadow: ReplayQueue[int]) -> None:
        shadow.offer(0)
        await asyncio.sleep(5.0)
        replays.setting = SETTING
        shadow.offer(1)
        await asyncio.sleep(5.0)

    shadowed(work, replays)
    assert replays.begun == [(0, 0.0), (1, 5.0)]


def test_when_the_shadow_is_off_nothing_begins_any_more_and_what_waited_is_forgotten() -> None:
    replays = Replays()

    async def work(shadow: ReplayQueue[int]) -> None:
        for item in range(5):
            shadow.offer(item)
        await asyncio.sleep(0.5)
        replays.setting = None
        await asyncio.sleep(5.0)
        shadow.offer(5)
        await asyncio.sleep(5.0)

    shadow = shadowed(work, replays)
    assert replays.ended == [0, 2]  # they had begun
    assert (shadow.num_begun, shadow.num_dropped) == (2, 4)


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5])
def test_closing_cancels_what_runs_and_leaves_nothing_behind(after_s: float) -> None:
    replays = Replays()
    replays.setting = dataclasses.replace(SETTING, max_per_s=1.0)

    async def work(shadow: ReplayQueue[int]) -> None:
        for item in range(4):
            shadow.offer(item)
        await asyncio.sleep(after_s)
        await shadow.close()
        num_begun = len(replays.begun)
        shadow.offer(9)
        await asyncio.sleep(50.0)
        assert len(replays.begun) == num_begun
        assert replays.ended == ([0] if after_s > 1 else [])

    shadow = shadowed(work, replays)
    assert shadow.num_begun + shadow.num_dropped == 5


def test_a_replay_that_fails_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    repeated: list[int] = []

    async def replay(item: int) -> None:
        repeated.append(item)
        if item == 0:
            raise KeyError("a defect")

    async def work() -> None:
        shadow = ReplayQueue(lambda: SETTING, replay)
        for item in range(3):
            shadow.offer(item)
        await asyncio.sleep(1.0)
        await shadow.close()

    run(work())
    assert repeated == [0, 1, 2]
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
    replays = Replays()
    setting = ShadowSetting(1.0, max_per_s, max_in_flight, max_queue)
    replays.setting = setting

    async def work(shadow: ReplayQueue[int]) -> None:
        for number, (pause_s, is_on) in enumerate(arrivals):
            await asyncio.sleep(pause_s)
            replays.setting = setting if is_on else None
            shadow.offer(number)
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
