"""Tests of what the candidate replays, and with what it is compared."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import aclosing
from dataclasses import replace

import pytest

from pipelines.errors import DraftproofError, EngineFailedError, RequestTimeoutError, ServerBusyError
from pipelines.router.arms import ShadowSetting
from pipelines.router.observation import Observation
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Responder
from tests.unit.router.router_world import (
    ANSWER,
    Change,
    World,
    answers,
    ask,
    chunk_of,
    fails,
    request_of,
    run,
)

SHADOW = ShadowSetting(share=1.0, max_per_s=1000.0, max_in_flight=2, max_queue=4)


def replayed(world: World, request: EngineRequest | None = None) -> list[Observation]:
    """Ask, wait for the replay, and return what was noted."""

    async def scenario() -> None:
        text, last = await ask(world, request or request_of(b"prompt"))
        assert (text, last.arm) == (ANSWER, "stable")
        await asyncio.sleep(0)
        while world.router.routing.num_open:  # ``run`` limits it
            await asyncio.sleep(0.01)

    run(world, scenario())
    return world.close()


@pytest.mark.parametrize(("said", "tokens"), [(ANSWER, "equal"), (b"def mean():", "diverged")])
def test_a_replay_is_compared_token_by_token(world: World, said: bytes, tokens: str) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = answers(said)

    original, replay = replayed(world)
    assert (original.answer, replay.answer) == ("", tokens)
    assert (original.num_common_tokens, replay.num_common_tokens) == (None, 5 if tokens == "diverged" else 11)
    assert (replay.arm, replay.is_replay, replay.request_id) == ("candidate", True, original.request_id)
    of_stable, of_candidate = (asked for _, asked in world.asked)
    assert of_stable.sampling.seed == of_candidate.sampling.seed
    if tokens == "diverged":
        assert replay.divergence is not None
        assert (replay.divergence.prompt, replay.divergence.first_difference) == ("prompt", 5)
        assert (replay.divergence.expected_of, replay.divergence.expected_text) == ("stable", "def main():")
        assert replay.divergence.candidate_text == "def mean():"
    else:
        assert replay.divergence is None


@pytest.mark.parametrize(("alone", "tokens"), [(b"def mean():", "equal"), (b"def moan():", "diverged")])
def test_a_replay_by_another_target_is_compared_with_it_alone(
    world: World, alone: bytes, tokens: str
) -> None:
    world.write(shadow=SHADOW, replays_match="own_target")

    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        answers(alone if request.num_draft_tokens == 0 else b"def mean():")(request, responder)

    world.behave["candidate"] = behave

    _, replay = replayed(world)
    assert (replay.answer, replay.is_replay, sum(replay.drafted_per_round)) == (tokens, True, 8)
    assert replay.num_common_tokens == 5, "with the stable pair's answer, not with its own target's"
    assert [arm for arm, _ in world.asked] == ["stable", "candidate", "candidate"]
    assert len({asked.sampling.seed for _, asked in world.asked}) == 1
    assert [asked.num_draft_tokens for _, asked in world.asked[:2]] == [None, None]
    if tokens == "diverged":
        assert replay.divergence is not None
        assert (replay.divergence.expected_of, replay.divergence.expected_text) == (
            "own_target",
            "def moan():",
        )
        assert (replay.divergence.candidate_text, replay.divergence.first_difference) == ("def mean():", 5)


def test_replays_that_ask_twice_keep_to_the_same_bounds(world: World) -> None:
    world.write(shadow=SHADOW, replays_match="own_target")
    open_at_once: list[int] = []
    is_open = 0
    held: list[tuple[EngineRequest, Responder[Chunk]]] = []

    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        nonlocal is_open
        is_open += 1
        open_at_once.append(is_open)
        held.append((request, responder))

    world.behave["candidate"] = behave

    async def scenario() -> None:
        nonlocal is_open
        for _ in range(5):
            assert (await ask(world, request_of()))[0] == ANSWER
        while world.router.routing.num_open:
            if held:
                is_open -= 1
                answers()(*held.pop(0))
            await asyncio.sleep(0.01)

    run(world, scenario())
    assert len(open_at_once) == 10 and max(open_at_once) == SHADOW.max_in_flight
    replays = [each for each in world.close() if each.is_replay]
    assert [each.answer for each in replays] == ["equal"] * 5


def test_a_target_that_fails_alone_is_the_candidates_failure(world: World) -> None:
    world.write(shadow=SHADOW, replays_match="own_target")

    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        is_alone = request.num_draft_tokens is not None
        (fails(EngineFailedError("gone")) if is_alone else answers())(request, responder)

    world.behave["candidate"] = behave

    _, replay = replayed(world)
    assert (replay.failure, replay.answer) == ("error", "")


@pytest.mark.parametrize("error", [ServerBusyError("full"), RequestTimeoutError("late")])
def test_a_replay_that_is_not_the_candidates_fault_goes_unnoted(world: World, error: DraftproofError) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = fails(error)

    (answer,) = replayed(world)
    assert not answer.is_replay


def test_a_replay_never_holds_the_answer_back(world: World) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = lambda request, responder: None

    async def scenario() -> None:
        began_s = time.monotonic()
        for _ in range(12):
            assert (await ask(world, request_of()))[0] == ANSWER
        assert time.monotonic() - began_s < 5
        begun, dropped = world.router.routing.replays
        assert (begun, dropped) == (2, 6)

    run(world, scenario())


def _at_end(change: Change) -> Change:
    return lambda chunk: change(chunk) if chunk.finish_reason else chunk


def _text_cut(chunk: Chunk) -> Chunk:
    return replace(chunk, text_length=chunk.text_length - 1)


def _stops(chunk: Chunk) -> Chunk:
    return replace(chunk, finish_reason="stop")


def _too_long(chunk: Chunk) -> Chunk:
    return replace(chunk, sequence_length=chunk.sequence_length + 1)


def _other_log_prob(chunk: Chunk) -> Chunk:
    changed = tuple(((token_id, math.nextafter(value, 0)),) for ((token_id, value),) in chunk.top_log_probs)
    return replace(chunk, top_log_probs=changed)


def _other_sum(chunk: Chunk) -> Chunk:
    return replace(chunk, cum_log_prob=chunk.cum_log_prob - 0.5)


FAULTS: dict[str, tuple[Change, str, str]] = {
    "text": (_at_end(_text_cut), "", ""),
    "finish_reason": (_at_end(_stops), "length", "stop"),
    "sequence_length": (_at_end(_too_long), "11", "12"),
    "log_probs": (_at_end(_other_log_prob), "{'cum_log_prob'", "{'cum_log_prob'"),
    "chunks": (_other_sum, "", "cum_log_probs=-"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("replays_match", ["stable", "own_target"])
def test_whatever_else_a_client_hears_is_compared_too(
    world: World, fault: str, streaming: bool, replays_match: str
) -> None:
    """The tokens are equal in each case; such candidates were promoted before."""
    change, expected, said = FAULTS[fault]
    world.write(shadow=SHADOW, replays_match=replays_match)

    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        is_alone = request.num_draft_tokens is not None
        (answers() if is_alone else answers(change=change))(request, responder)

    world.behave["candidate"] = behave

    original, replay = replayed(world, request_of(b"prompt", streaming=streaming, num_log_probs=1))
    assert (original.answer, original.differs_in) == ("", "")
    assert (replay.answer, replay.differs_in) == ("diverged", fault.partition(":")[0])
    assert replay.num_common_tokens == len(ANSWER)
    assert replay.divergence is not None
    assert replay.divergence.differs_in == replay.differs_in
    assert replay.divergence.expected.startswith(expected)
    assert replay.divergence.candidate.startswith(said)
    assert replay.divergence.expected_text == "def main():"


def test_log_probabilities_that_are_equal_in_all_bits_are_equal(world: World) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = answers(size=4)

    _, replay = replayed(world, request_of(num_log_probs=1))
    assert (replay.answer, replay.differs_in) == ("equal", "")


def test_the_longest_pause_is_between_two_responses_of_a_stream(world: World) -> None:
    world.write()
    received = threading.Semaphore(0)
    first_sent_at_s = 0.0

    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        nonlocal first_sent_at_s
        time.sleep(0.4)  # before the first response: that is no pause
        first_sent_at_s = time.monotonic()
        responder.send(chunk_of(ANSWER[:3], 3), is_final=False)
        received.acquire(timeout=120)
        time.sleep(0.2)
        responder.send(chunk_of(ANSWER[3:], 11), is_final=True)

    async def read() -> None:
        async with aclosing(world.router.answer_tokens(request_of())) as responses:
            async for _ in responses:
                received.release()

    # On a thread of its own: otherwise everything is sent at its end.
    world.behave["stable"] = lambda *given: threading.Thread(target=behave, args=given).start()
    run(world, read())
    all_s = time.monotonic() - first_sent_at_s
    world.behave["stable"] = answers()
    run(world, ask(world, request_of(streaming=False)))
    streamed, whole = world.close()
    assert streamed.longest_pause_s is not None and 0.2 <= streamed.longest_pause_s <= all_s
    assert whole.longest_pause_s is None


def test_the_ratio_rule_is_not_compared(world: World) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = answers(b"def mean():")

    _, replay = replayed(world, request_of(use_draft_logits=True))
    assert (replay.answer, replay.divergence) == ("", None)
