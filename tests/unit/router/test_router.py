"""Tests of the router between real sockets: who answers, who takes over, what is recorded."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from pipelines.errors import DraftproofError, EngineFailedError, InvalidRequestError, ServerBusyError
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Responder
from tests.unit.router.router_world import (
    ANSWER,
    World,
    answers,
    ask,
    chunk_of,
    fails,
    request_of,
    run,
)


def test_every_arm_gets_the_same_seed_and_a_client_may_name_its_arm(world: World) -> None:
    world.write(0.5)
    _, last = run(world, ask(world, request_of(), "candidate"))
    assert last.arm == "candidate"
    run(world, ask(world, request_of(seed=7), "control"))
    assert world.asked[-1][1].sampling.seed == 7
    with pytest.raises(InvalidRequestError, match="there is no such arm"):
        run(world, ask(world, request_of(), "canary"))
    assert [each.overridden for each in world.close()] == [True, True]


def test_during_a_rollout_no_arm_is_told_the_session(world: World) -> None:
    request = request_of(session_id="s")
    world.write(None)
    run(world, ask(world, request))
    assert world.asked[-1][1].session_id == "s"
    world.write(0.5)
    run(world, ask(world, request))
    assert world.asked[-1][1].session_id == ""
    assert [each.session_id for each in world.close()] == ["s", "s"]


@pytest.mark.parametrize("after", [0, 4, 11])
@pytest.mark.parametrize("error", [EngineFailedError("a step failed"), ServerBusyError("the queue is full")])
def test_a_candidate_that_fails_is_stood_in_for_and_no_token_is_lost(
    world: World, error: DraftproofError, after: int
) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(error, after)
    text, last = run(world, ask(world, request_of()))
    assert text == ANSWER
    assert (last.arm, last.fallback_from) == ("stable", ("candidate",))
    (noted,) = world.close()
    reason = "busy" if isinstance(error, ServerBusyError) else "error"
    assert (noted.arm, noted.fallback_from, noted.fallback_reasons) == ("stable", ("candidate",), (reason,))


OTHER = b"dex main():"


@pytest.mark.parametrize("after", [1, 4, 10])
def test_a_candidate_with_another_target_that_fails_in_mid_stream_loses_no_request(
    world: World, after: int
) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after)
    world.behave["stable"] = answers(OTHER)
    text, last = run(world, ask(world, request_of(max_tokens=11, seed=5, num_log_probs=0)))
    assert text == ANSWER[:after] + OTHER[after:]
    assert last.cum_log_prob == pytest.approx(sum(text) / -100.3)
    assert (last.arm, last.fallback_from) == ("stable", ("candidate",))
    (noted,) = world.close()
    assert (noted.arm, noted.fallback_reasons, noted.failure) == ("stable", ("error",), "")
    asked = world.asked[-1][1]
    assert bytes(asked.input_ids) == b"x" + ANSWER[:after]
    assert (asked.prompt_length, asked.max_tokens, asked.sampling.seed) == (1, 11 - after, 5)
    assert last.sequence_length == 11


def test_an_answer_that_the_client_had_begun_is_resumed_behind_its_own_prompt(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after=4)
    world.behave["stable"] = answers(OTHER)
    run(world, ask(world, request_of(b"xyz", prompt_length=1, max_tokens=11)))
    asked = world.asked[-1][1]
    assert bytes(asked.input_ids) == b"xyz" + ANSWER[:4]
    assert (asked.prompt_length, asked.max_tokens) == (1, 7)


def test_the_arm_that_failed_is_charged_and_not_the_one_that_was_busy(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after=4)
    for arm in ("stable", "control"):
        world.behave[arm] = fails(ServerBusyError("the queue is full"))
    with pytest.raises(EngineFailedError, match="gone"):
        run(world, ask(world, request_of()))
    (noted,) = world.close()
    assert (noted.arm, noted.failure) == ("candidate", "error")


def test_a_silent_stable_pair_is_not_asked_twice(world: World) -> None:
    """It may read a long prompt, and its target alone computes on the same engine."""
    world.write(0.0, slow_after_s=0.05)
    world.behave["stable"] = answers(delay_s=0.3)
    _, last = run(world, ask(world, request_of()))
    assert last.arm == "stable" and [arm for arm, _ in world.asked] == ["stable"]


def test_an_arm_that_keeps_failing_is_left_out_and_comes_back(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"))

    async def scenario() -> None:
        for _ in range(8):
            await ask(world, request_of())
        assert sum(arm == "candidate" for arm, _ in world.asked) == 5
        world.behave["stable"] = fails(EngineFailedError("gone"))
        world.behave["candidate"] = answers()
        assert (await ask(world, request_of()))[1].arm == "control", "the candidate is asked last"
        assert world.router.routing.is_out("candidate")
        world.behave["candidate"] = answers()
        await asyncio.sleep(1.1)
        assert (await ask(world, request_of()))[1].arm == "candidate"
        assert not world.router.routing.is_out("candidate")

    run(world, scenario())


def test_observations_match_the_answers(world: World) -> None:
    world.write()
    run(world, ask(world, request_of(request_id="mine", num_draft_tokens=2)))
    text, last = run(world, ask(world, request_of(streaming=False)))
    assert text == bytes(last.output_ids) == last.text.encode() == ANSWER
    assert len(last.accepted_mask) == len(ANSWER)
    streamed, whole = world.close()
    assert streamed.request_id.startswith("mine/")
    assert (streamed.num_output_tokens, streamed.drafted_per_round) == (11, (0, 2, 4, 2))
    assert streamed.accepted_per_round == (0, 2, 1, 1)
    assert streamed.ttft_s is not None and streamed.e2e_latency_s is not None
    assert 0 < streamed.ttft_s <= streamed.e2e_latency_s
    assert whole.ttft_s is None
    assert streamed.prompt_id == whole.prompt_id
    assert abs(streamed.arrived_at_s - time.time()) < 60


def test_a_log_is_complete_up_to_the_oldest_request_in_flight(world: World) -> None:
    world.write()
    held: list[tuple[EngineRequest, Responder[Chunk]]] = []

    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        if request.request_id == "slow":
            held.append((request, responder))
        else:
            answers()(request, responder)

    async def scenario() -> None:
        slow = asyncio.create_task(ask(world, request_of(request_id="slow")))
        while not held:
            await asyncio.sleep(0.01)
        await ask(world, request_of())
        answers()(*held.pop())
        await slow

    world.behave["stable"] = behave
    run(world, scenario())
    quick, slow = world.close()
    assert quick.oldest_open_at_s == slow.arrived_at_s < quick.arrived_at_s
    assert slow.oldest_open_at_s > quick.arrived_at_s


def test_prompts_are_named_by_what_decides_the_answer(world: World) -> None:
    world.write()
    requests = [
        request_of(b"x", seed=1),
        request_of(b"x", seed=2),
        request_of(b"y"),
        request_of(b"x", seed=1, temperature=0.5),
        request_of(b"x", seed=2, temperature=0.5),
    ]
    for request in requests:
        run(world, ask(world, request))
    names = [each.prompt_id for each in world.close()]
    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_a_client_that_leaves_is_not_noted_and_its_arm_is_told(world: World) -> None:
    world.write()
    world.behave["stable"] = lambda request, responder: responder.send(chunk_of(b"de", 2), is_final=False)

    async def leave() -> None:
        async with aclosing(world.router.answer_tokens(request_of())) as responses:
            await anext(responses)

    run(world, leave())
    assert world.router.routing.num_open == 0
    assert world.router.num_requests == {("stable", "left"): 1}
    assert world.close() == []
