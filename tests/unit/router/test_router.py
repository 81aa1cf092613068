"""Tests of the router between real sockets: who answers, who takes over, what is recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import DraftproofError, EngineFailedError, InvalidRequestError, ServerBusyError
from pipelines.wire.calls import Call
from pipelines.wire.responder import Responder
from pipelines.wire.tensors import scalar_tensor, text_tensor
from tests.unit.router.router_world import (
    ANSWER,
    World,
    answers,
    arm_of,
    ask,
    call_of,
    fails,
    outputs_of,
    run,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_every_arm_gets_the_same_seed_and_a_client_may_name_its_arm(world: World) -> None:
    world.write(0.5)
    _, last = run(world, ask(world, call_of(arm=text_tensor("candidate"))))
    assert arm_of(last) == "candidate"
    assert "seed" in world.asked[-1][1].tensors
    given = scalar_tensor(7, np.uint64)
    run(world, ask(world, call_of(arm=text_tensor("control"), seed=given)))
    assert world.asked[-1][1].tensors["seed"].item() == 7
    with pytest.raises(InvalidRequestError, match="there is no such arm"):
        run(world, ask(world, call_of(arm=text_tensor("canary"))))
    assert [each.overridden for each in world.close()] == [True, True]


def test_during_a_rollout_no_arm_is_told_the_session(world: World) -> None:
    call = call_of(session_id=text_tensor("s"))
    world.write(None)
    run(world, ask(world, call))
    assert world.asked[-1][1].tensors["session_id"].item() == b"s"
    world.write(0.5)
    run(world, ask(world, call))
    assert "session_id" not in world.asked[-1][1].tensors
    assert [each.session_id for each in world.close()] == ["s", "s"]


@pytest.mark.parametrize("after", [0, 3, 4, 11])
@pytest.mark.parametrize("error", [EngineFailedError("a step failed"), ServerBusyError("the queue is full")])
def test_a_candidate_that_fails_is_stood_in_for_and_no_token_is_lost(
    world: World, error: DraftproofError, after: int
) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(error, after)
    text, last = run(world, ask(world, call_of()))
    assert text == ANSWER
    assert (arm_of(last), last["fallback_from"].item()) == ("stable", b"candidate")
    (noted,) = world.close()
    reason = "busy" if isinstance(error, ServerBusyError) else "error"
    assert (noted.arm, noted.fallback_from, noted.fallback_reasons) == ("stable", ("candidate",), (reason,))


def goes_on(call: Call, responder: Responder) -> None:
    """Resume with ``dex main():``, whatever output it is given."""
    num_known = call.tensors["input_ids"].size - call.tensors.get("prompt_length", np.array(1)).item()
    answers(b"dex main():"[num_known:])(call, responder)


@pytest.mark.parametrize("after", [1, 4, 10])
def test_a_candidate_with_another_target_that_fails_in_mid_stream_loses_no_request(
    world: World, after: int
) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after)
    world.behave["stable"] = goes_on
    call = call_of(request_output_len=scalar_tensor(11, np.int32), seed=scalar_tensor(5, np.uint64))
    text, last = run(world, ask(world, call))
    assert text == ANSWER[:after] + b"dex main():"[after:]
    assert (arm_of(last), last["fallback_from"].item()) == ("stable", b"candidate")
    (noted,) = world.close()
    assert (noted.arm, noted.fallback_reasons, noted.failure) == ("stable", ("error",), "")
    if after == 1:
        return  # both begin with the same token
    asked = world.asked[-1][1].tensors
    assert bytes(asked["input_ids"].reshape(-1).astype(np.uint8)) == b"x" + ANSWER[:after]
    told = {name: asked[name].item() for name in ("prompt_length", "input_lengths", "request_output_len")}
    assert told == {"prompt_length": 1, "input_lengths": 1 + after, "request_output_len": 11 - after}
    assert asked["seed"].item() == 5
    assert last["sequence_length"].item() == 11


def test_an_answer_that_the_client_had_begun_is_resumed_behind_its_own_prompt(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after=4)
    world.behave["stable"] = answers(b"dex main():")  # differs, so it is asked to resume
    call = call_of(
        b"xyz", prompt_length=scalar_tensor(1, np.int32), request_output_len=scalar_tensor(11, np.int32)
    )
    run(world, ask(world, call))
    asked = world.asked[-1][1].tensors
    assert bytes(asked["input_ids"].reshape(-1).astype(np.uint8)) == b"xyz" + ANSWER[:4]
    told = {name: asked[name].item() for name in ("prompt_length", "input_lengths", "request_output_len")}
    assert told == {"prompt_length": 1, "input_lengths": 7, "request_output_len": 7}


def test_a_request_is_lost_only_if_no_arm_resumes_it(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("the candidate is gone"), after=4)
    world.behave["stable"] = fails(EngineFailedError("the stable pair is gone"), after=2)
    world.behave["control"] = fails(EngineFailedError("the control is gone"))
    with pytest.raises(EngineFailedError, match="the candidate is gone"):
        run(world, ask(world, call_of()))
    (noted,) = world.close()
    assert noted.failure == "error"


def test_the_arm_that_failed_is_charged_and_not_the_one_that_was_busy(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after=4)
    for arm in ("stable", "control"):
        world.behave[arm] = fails(ServerBusyError("the queue is full"))
    with pytest.raises(EngineFailedError, match="gone"):
        run(world, ask(world, call_of()))
    (noted,) = world.close()
    assert (noted.arm, noted.failure) == ("candidate", "error")


def test_a_burst_takes_no_arm_out(world: World) -> None:
    world.write(0.5)
    for arm in world.behave:
        world.behave[arm] = answers(delay_s=0.001)

    async def scenario() -> None:
        burst = await asyncio.gather(*(ask(world, call_of(streaming=False)) for _ in range(600)))
        assert {text for text, _ in burst} == {ANSWER}

    run(world, scenario())
    assert not any(world.router.routing.is_out(arm) for arm in world.behave)
    assert {outcome for _, outcome in world.router.num_requests} == {"answered"}
    assert {each.failure for each in world.close()} == {""}


def test_a_whole_answer_comes_from_one_arm(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after=4)
    world.behave["stable"] = goes_on
    text, _ = run(world, ask(world, call_of(streaming=False)))
    assert text == b"dex main():"
    assert all("prompt_length" not in call.tensors for _, call in world.asked)


def test_a_slow_candidate_is_helped_out(world: World) -> None:
    world.write(1.0, slow_after_s=0.2)
    world.behave["candidate"] = lambda call, responder: None
    text, last = run(world, ask(world, call_of()))
    assert (text, arm_of(last)) == (ANSWER, "stable")
    (noted,) = world.close()
    assert noted.fallback_reasons == ("timeout",)


def test_a_silent_stable_pair_is_not_asked_twice(world: World) -> None:
    """It may read a long prompt, and its target alone computes on the same engine."""
    world.write(0.0, slow_after_s=0.05)
    world.behave["stable"] = answers(delay_s=0.3)
    _, last = run(world, ask(world, call_of()))
    assert arm_of(last) == "stable" and [arm for arm, _ in world.asked] == ["stable"]


def test_an_arm_that_keeps_failing_is_left_out_and_comes_back(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"))

    async def scenario() -> None:
        for _ in range(8):
            await ask(world, call_of())
        assert sum(arm == "candidate" for arm, _ in world.asked) == 5
        assert world.router.routing.is_out("candidate")
        world.behave["candidate"] = answers()
        await asyncio.sleep(1.1)
        assert arm_of((await ask(world, call_of()))[1]) == "candidate"
        assert not world.router.routing.is_out("candidate")

    run(world, scenario())


def test_observations_match_the_answers(world: World) -> None:
    world.write()
    run(world, ask(world, call_of(request_id="mine", num_draft_tokens=scalar_tensor(2, np.int32))))
    text, last = run(world, ask(world, call_of(streaming=False)))
    assert text == bytes(last["output_ids"].reshape(-1).astype(np.uint8)) == ANSWER
    assert last["text_length"].item() == last["accepted_mask"].size == len(ANSWER)
    streamed, whole = world.close()
    assert streamed.request_id.startswith("mine/")
    assert (streamed.num_output_tokens, streamed.drafted_per_round) == (11, (0, 2, 4, 2))
    assert streamed.accepted_per_round == (0, 2, 1, 1)
    assert streamed.ttft_s is not None and streamed.e2e_latency_s is not None
    assert 0 < streamed.ttft_s <= streamed.e2e_latency_s
    assert whole.ttft_s is None
    assert streamed.prompt_id == whole.prompt_id
    assert abs(streamed.arrived_at_s - time.time()) < 60


def test_prompts_are_named_by_what_decides_the_answer(world: World) -> None:
    world.write()
    warm = {"temperature": scalar_tensor(0.5, np.float32)}
    calls = [
        call_of(b"x", seed=scalar_tensor(1, np.uint64)),
        call_of(b"x", seed=scalar_tensor(2, np.uint64)),
        call_of(b"y"),
        call_of(b"x", seed=scalar_tensor(1, np.uint64), **warm),
        call_of(b"x", seed=scalar_tensor(2, np.uint64), **warm),
    ]
    for call in calls:
        run(world, ask(world, call))
    names = [each.prompt_id for each in world.close()]
    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_a_client_that_leaves_is_not_noted_and_its_arm_is_told(world: World) -> None:
    world.write()
    world.behave["stable"] = lambda call, responder: responder.send(outputs_of(b"de", 2), is_final=False)

    async def leave() -> None:
        async with aclosing(world.router.answer_tokens(call_of())) as responses:
            await anext(responses)

    run(world, leave())
    assert world.router.routing.num_open == 0
    assert world.router.num_requests == {("stable", "left"): 1}
    assert world.close() == []
