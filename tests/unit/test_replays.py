"""What the candidate repeats, and with what it is compared; run: pytest tests/unit/test_replays.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import EngineFailedError
from pipelines.routing.arms import ShadowSetting
from pipelines.serving.local_calls import Call
from pipelines.serving.responder import Responder
from pipelines.serving.triton_wire import scalar_tensor
from tests.unit.router_world import ANSWER, World, answers, arm_of, ask, call_of, fails, run

SHADOW = ShadowSetting(share=1.0, max_per_s=1000.0, max_in_flight=2, max_queue=4)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


async def settled(world: World) -> None:
    while world.router.num_open:  # ``run`` bounds it
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("said", "tokens"), [(ANSWER, "equal"), (b"def mean():", "diverged")])
def test_a_replay_is_compared_token_by_token(world: World, said: bytes, tokens: str) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = answers(said)

    async def scenario() -> None:
        text, last = await ask(world, call_of(b"prompt"))
        assert (text, arm_of(last)) == (ANSWER, "stable")
        await asyncio.sleep(0)
        await settled(world)

    run(world, scenario())
    original, replay = world.close()
    assert (original.tokens, replay.tokens) == ("", tokens)
    assert (original.num_common_tokens, replay.num_common_tokens) == (None, 5 if tokens == "diverged" else 11)
    assert (replay.arm, replay.is_replay, replay.request_id) == ("candidate", True, original.request_id)
    stable_call, candidate_call = (call for _, call in world.asked)
    assert stable_call.tensors["seed"].item() == candidate_call.tensors["seed"].item()
    if tokens == "diverged":
        assert replay.divergence is not None
        assert (replay.divergence.prompt, replay.divergence.first_difference) == ("prompt", 5)
        assert (replay.divergence.expected_of, replay.divergence.expected_text) == ("stable", "def main():")
        assert replay.divergence.candidate_text == "def mean():"
    else:
        assert replay.divergence is None


@pytest.mark.parametrize(("alone", "tokens"), [(b"def mean():", "equal"), (b"def moan():", "diverged")])
def test_a_replay_by_another_target_is_compared_with_that_target_alone(
    world: World, alone: bytes, tokens: str
) -> None:
    world.write(shadow=SHADOW, replays_match="own_target")

    def behave(call: Call, responder: Responder) -> None:
        drafts = call.tensors["num_draft_tokens"].item() if "num_draft_tokens" in call.tensors else None
        answers(alone if drafts == 0 else b"def mean():")(call, responder)

    world.behave["candidate"] = behave

    async def scenario() -> None:
        text, _ = await ask(world, call_of(b"prompt"))
        assert text == ANSWER
        await asyncio.sleep(0)
        await settled(world)

    run(world, scenario())
    _, replay = world.close()
    assert (replay.tokens, replay.is_replay, sum(replay.drafted_per_round)) == (tokens, True, 8)
    assert replay.num_common_tokens == 5, "with the stable pair's answer, not with its own target's"
    assert [arm for arm, _ in world.asked] == ["stable", "candidate", "candidate"]
    assert len({call.tensors["seed"].item() for _, call in world.asked}) == 1
    assert [call.tensors.get("num_draft_tokens") for _, call in world.asked[:2]] == [None, None]
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
    held: list[tuple[Call, Responder]] = []

    def behave(call: Call, responder: Responder) -> None:
        nonlocal is_open
        is_open += 1
        open_at_once.append(is_open)
        held.append((call, responder))

    world.behave["candidate"] = behave

    async def scenario() -> None:
        nonlocal is_open
        for _ in range(5):
            assert (await ask(world, call_of()))[0] == ANSWER
        while world.router.num_open:
            if held:
                is_open -= 1
                answers()(*held.pop(0))
            await asyncio.sleep(0.01)

    run(world, scenario())
    assert len(open_at_once) == 10 and max(open_at_once) == SHADOW.max_in_flight
    replays = [each for each in world.close() if each.is_replay]
    assert [each.tokens for each in replays] == ["equal"] * 5


def test_a_target_that_fails_alone_is_the_candidates_failure(world: World) -> None:
    world.write(shadow=SHADOW, replays_match="own_target")

    def behave(call: Call, responder: Responder) -> None:
        is_alone = "num_draft_tokens" in call.tensors
        (fails(EngineFailedError("gone")) if is_alone else answers())(call, responder)

    world.behave["candidate"] = behave

    async def scenario() -> None:
        await ask(world, call_of())
        await asyncio.sleep(0)
        await settled(world)

    run(world, scenario())
    _, replay = world.close()
    assert (replay.failure, replay.tokens) == ("error", "")


def test_a_replay_never_holds_the_answer_back(world: World) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = lambda call, responder: None

    async def scenario() -> None:
        began_s = time.monotonic()
        for _ in range(12):
            assert (await ask(world, call_of()))[0] == ANSWER
        assert time.monotonic() - began_s < 5
        begun, dropped = world.router.replays
        assert (begun, dropped) == (2, 6)

    run(world, scenario())


def test_the_ratio_rule_is_not_compared(world: World) -> None:
    world.write(shadow=SHADOW)
    world.behave["candidate"] = answers(b"def mean():")

    async def scenario() -> None:
        await ask(world, call_of(use_draft_logits=scalar_tensor(True, np.bool_)))
        await asyncio.sleep(0)
        await settled(world)

    run(world, scenario())
    _, replay = world.close()
    assert (replay.tokens, replay.divergence) == ("", None)
