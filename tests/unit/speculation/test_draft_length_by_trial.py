"""Tests of the draft length by trials, in a world where every call and step has a known time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import numpy as np
import pytest

from pipelines.errors import EngineFailedError, RequestRefusedError
from pipelines.speculation.draft_length.by_trial import Load, TriedDraftLengths
from pipelines.speculation.draft_length.draft_plan import DraftLength, FixedDraftLength
from pipelines.speculation.draft_length.survival import RequestAcceptance
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from tests.support.virtual_time import run_virtually

CALL_S = 0.0014  # measured on the stand-in
ANSWER = 100
PROMPT = np.array([1, 2, 3], np.int32)


@dataclass
class World:
    """Engines behind calls; a share ``rate`` of draft tokens is accepted, ``_s`` are seconds per step."""

    draft_s: float
    target_s: float
    rate: float = 0.8
    draft_fails: bool = False
    draft_is_mute: bool = False
    draft_refuses: bool = False
    crowd: float = 0.0  # extra time of a draft step for each concurrent proposal
    proposals: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    most_drafting: int = 0
    _num_drafting: int = 0
    _rng: random.Random = field(default_factory=lambda: random.Random(1))

    async def draft(self, request: GenerationRequest) -> Output:
        self.proposals.append(request.max_tokens)
        step_s = self.draft_s * (1 + self.crowd * self._num_drafting)
        self._num_drafting += 1
        self.most_drafting = max(self.most_drafting, self._num_drafting)
        await asyncio.sleep(CALL_S + request.max_tokens * step_s)
        self._num_drafting -= 1
        if self.draft_fails:
            raise EngineFailedError("the draft fails", values="-", limit="-", remedy="-")
        if self.draft_refuses:
            raise RequestRefusedError("the draft refuses", values="-", limit="-", remedy="-")
        num_tokens = 0 if self.draft_is_mute else request.max_tokens
        return Output(np.zeros(num_tokens, np.int32), "length", is_final=True)

    async def target(self, request: GenerationRequest) -> Output:
        await asyncio.sleep(CALL_S + self.target_s)
        num_draft = len(request.draft_input_ids)
        num_accepted = next((i for i in range(num_draft) if self._rng.random() > self.rate), num_draft)
        token_ids = np.append(np.zeros(num_accepted, np.int32), 9).astype(np.int32)
        return Output(token_ids, "length", is_final=True)

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Output, None]:
        self.answers.append(request.max_tokens)
        await asyncio.sleep(CALL_S)
        for left in reversed(range(request.max_tokens)):
            await asyncio.sleep(self.target_s)
            yield Output(np.array([9], np.int32), "" if left else "length", is_final=not left)

    async def answer(self, length: DraftLength, num_tokens: int = ANSWER) -> None:
        request = GenerationRequest("r", PROMPT, num_tokens)
        async for _ in speculate(request, self.draft, self.target, length, stream=self.stream):
            pass


def seconds(world: World, lengths: TriedDraftLengths, num_answers: int, num_at_once: int = 1) -> float:
    """Return the mean time of a client's answers."""
    ends_s = []

    async def client() -> None:
        for _ in range(num_answers):
            length = lengths.begin(PROMPT, RequestAcceptance(lengths.acceptance), sees_margins=False)
            await world.answer(length)
            lengths.end(length)
        ends_s.append(lengths.clock())

    async def serve() -> None:
        lengths.clock = asyncio.get_running_loop().time
        await asyncio.gather(*(client() for _ in range(num_at_once)))

    run_virtually(serve())
    return sum(ends_s) / num_at_once


def alone_s(world: World, num_answers: int) -> float:
    return num_answers * (CALL_S + ANSWER * world.target_s)


def fixed_s(world: World, num_draft_tokens: int, num_answers: int) -> float:
    async def ask() -> None:
        for _ in range(num_answers):
            await world.answer(FixedDraftLength(num_draft_tokens))

    return run_virtually(ask())


LOADS = [1, pytest.param(4, marks=pytest.mark.long), 16]


@pytest.mark.parametrize("num_at_once", LOADS)
@pytest.mark.parametrize("step_s", [0.002, 0.02])
def test_a_draft_as_costly_as_the_target_costs_little_and_soon_nothing(
    step_s: float, num_at_once: int
) -> None:
    world, lengths = World(step_s, step_s), TriedDraftLengths(8)
    first_s = seconds(world, lengths, 10, num_at_once)
    assert alone_s(world, 10) / first_s > 0.95
    assert max(world.proposals) <= 2
    world.proposals.clear()
    world.answers.clear()
    later_s = seconds(world, lengths, 30, num_at_once)
    assert alone_s(world, 30) / later_s > 0.99
    assert len(world.proposals) <= 60
    whole = world.answers.count(ANSWER)
    assert whole >= 0.9 * 30 * num_at_once, "the target answers in one request each"


@pytest.mark.parametrize("num_at_once", LOADS)
@pytest.mark.parametrize("rate", [0.5, pytest.param(0.7, marks=pytest.mark.long), 0.9])
def test_a_cheap_draft_is_nearly_as_fast_as_with_the_best_known_length(rate: float, num_at_once: int) -> None:
    world = World(0.002, 0.02, rate)
    found_s = seconds(world, TriedDraftLengths(8), 20, num_at_once)
    best_s = min(fixed_s(world, count, 20) for count in (1, 2, 3, 4, 6, 8))
    assert best_s < 0.8 * alone_s(world, 20), "drafting must pay here, or this shows less than it says"
    assert best_s / found_s > 0.8


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_draft_that_is_hardly_ever_right_is_left_alone(rate: float) -> None:
    world, lengths = World(0.002, 0.02, rate), TriedDraftLengths(8)
    assert alone_s(world, 10) / seconds(world, lengths, 10) > 0.95
    world.proposals.clear()
    seconds(world, lengths, 100)
    assert len(world.proposals) <= 30


def test_drafting_begins_when_it_pays_and_ends_when_it_does_not() -> None:
    world, lengths = World(0.02, 0.02), TriedDraftLengths(8)
    seconds(world, lengths, 20)
    assert lengths.threshold == 2
    world.draft_s = 0.001
    changed_s = seconds(world, lengths, 40)
    assert lengths.threshold < 0.5
    assert changed_s < 0.8 * alone_s(world, 40)
    world.draft_s = 0.04
    seconds(world, lengths, 2)
    world.proposals.clear()
    seconds(world, lengths, 20)
    assert len(world.proposals) <= 15


def test_a_time_of_the_target_that_was_slow_by_chance_does_not_stand() -> None:
    """This happens on a cold server: drafting seems to pay, and the target is not timed while it does."""
    world, lengths = World(0.02, 0.02), TriedDraftLengths(8)
    for _ in range(3):
        lengths.load.alone_s.append(1.0)
    seconds(world, lengths, 40)
    assert lengths.threshold == 2
    world.proposals.clear()
    seconds(world, lengths, 20)
    assert len(world.proposals) <= 15


@pytest.mark.parametrize("defect", ["draft_fails", "draft_is_mute"])
def test_a_draft_that_gives_nothing_is_not_asked_for_every_token(defect: str) -> None:
    world, lengths = World(0.001, 0.02), TriedDraftLengths(8)
    setattr(world, defect, True)
    seconds(world, lengths, 20)
    assert 0 < len(world.proposals) <= 10
    setattr(world, defect, False)
    assert seconds(world, lengths, 40) < 0.8 * alone_s(world, 40)


def test_requests_that_the_draft_refuses_do_not_keep_others_from_drafting() -> None:
    world, lengths = World(0.001, 0.02), TriedDraftLengths(8)
    world.draft_refuses = True
    seconds(world, lengths, 5)
    assert len(world.proposals) == 5, "once for each request: there is no pause"
    world.proposals.clear()
    seconds(world, lengths, 1, num_at_once=8)
    assert len(world.proposals) == 8, "once for each request: a trial is handed on"


def test_one_request_tries_at_a_time() -> None:
    world = World(0.02, 0.02)
    seconds(world, TriedDraftLengths(8), 1, num_at_once=63)
    assert world.proposals and world.most_drafting == 1


def test_what_pays_alone_and_not_in_a_crowd_is_known_apart() -> None:
    """Otherwise each change of the load would be decided by the times of the previous one."""
    world, lengths = World(0.002, 0.02, crowd=8.0), TriedDraftLengths(8)
    seconds(world, lengths, 20)
    seconds(world, lengths, 10, num_at_once=8)
    world.proposals.clear()
    assert seconds(world, lengths, 5) < 0.7 * alone_s(world, 5), "it drafts at once"
    assert alone_s(world, 10) / seconds(world, lengths, 10, num_at_once=8) > 0.9


def test_a_new_request_begins_where_the_latest_were() -> None:
    world, lengths = World(0.01, 0.02, rate=0.3), TriedDraftLengths(8)
    seconds(world, lengths, 30)
    new = RequestAcceptance(lengths.acceptance)
    assert 0.15 < new.mean_rate < 0.5


def test_times_tell_the_best_length_whatever_one_slow_round_took() -> None:
    load = Load()
    load.alone_s.append(0.02)
    assert load.best(0.8, 8) is None
    for proposal_s in (0.5, CALL_S + 2 * 0.002, CALL_S + 2 * 0.002):
        load.proposals.append((2, proposal_s))
        load.verifications_s.append(CALL_S + 0.02)
    length, gain = load.best(0.8, 8)
    expected = {
        count: sum(0.8**i for i in range(count + 1)) * 0.02 / (2 * CALL_S + 0.02 + count * 0.002)
        for count in range(1, 9)
    }
    assert expected[length] == max(expected.values()) == pytest.approx(gain)
