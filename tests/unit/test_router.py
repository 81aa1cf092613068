"""The router between real sockets: who answers, who stands in, what is noted, and that nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import DraftproofError, EngineFailedError, InvalidRequestError, ServerBusyError
from pipelines.routing.arms import Arm, ArmSetting, ArmTable, Bands, LiveArms, ShadowSetting, write_table
from pipelines.routing.observation import Observation
from pipelines.routing.observation_log import ObservationLog, read_observations
from pipelines.serving.call_server import CallServer
from pipelines.serving.local_calls import Call, Tensors
from pipelines.serving.responder import Outlet, Responder
from pipelines.serving.router import Router
from pipelines.serving.triton_wire import scalar_tensor, text_tensor
from pipelines.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
ANSWER = b"def main():"

Behave = Callable[[Call, Responder], None]


def outputs_of(tokens: bytes, end: int, *, drafts: bool = True) -> Tensors:
    """A response with these tokens, of which the answer then has ``end``."""
    ids = np.frombuffer(tokens, np.uint8).astype(np.int32)
    outputs: Tensors = {
        "output_ids": ids.reshape(1, 1, -1),
        "text_length": scalar_tensor(len(ids), np.int32),
        "sequence_length": scalar_tensor(end, np.int32),
        "output_log_probs": np.empty((1, 1, 0), np.float32),
        "finish_reason": text_tensor("length" if end == len(ANSWER) else ""),
    }
    if drafts:
        outputs |= {
            "accepted_mask": np.zeros((1, len(ids)), np.bool_),
            "num_rounds": scalar_tensor(4, np.int32),
            "total_draft_tokens": scalar_tensor(8, np.int32),
            "accepted_per_position": np.array([[3, 1]], np.int32),
        }
    return outputs


def answers(text: bytes = ANSWER, *, size: int = 3, delay_s: float = 0.0) -> Behave:
    def behave(call: Call, responder: Responder) -> None:
        time.sleep(delay_s)
        streaming = bool(call.tensors["streaming"].item())
        step = size if streaming else len(text)
        for begin in range(0, len(text), step):
            end = min(begin + step, len(text))
            responder.send(outputs_of(text[begin:end], end), is_final=end == len(text))

    return behave


def fails(error: DraftproofError, after: int = 0) -> Behave:
    def behave(call: Call, responder: Responder) -> None:
        if after:
            responder.send(outputs_of(ANSWER[:after], after), is_final=False)
        responder.fail(error)

    return behave


class World:
    """Three sockets and a router in front of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[Arm, Call]] = []
        self.behave: dict[Arm, Behave] = {}
        self._servers: list[CallServer] = []
        names: tuple[Arm, ...] = ("stable", "candidate", "control")
        for arm in names:
            self.behave[arm] = answers()
            self._servers.append(CallServer(folder / arm, self._serve(arm)))
        self.log = ObservationLog(folder / "log")
        self.router = Router(LiveArms(folder / "arms.json", self.table()), self.log, VOCABULARY)

    def table(self, candidate: float = 0.0, control: float = 0.0, **others: Any) -> ArmTable:
        def setting(name: Arm, weight: float) -> ArmSetting:
            return ArmSetting(str(self.folder / name), weight)

        given: dict[str, Any] = {
            "generation": 1,
            "canary_id": "c1",
            "salt": "s",
            "shadow": None,
            "bands": Bands(2, 4),
            "lease_until_s": time.time() + 60,
            "slow_after_s": 5.0,
        }
        return ArmTable(
            stable=setting("stable", 1 - candidate - control),
            candidate=setting("candidate", candidate),
            control=setting("control", control),
            **{**given, **others},
        )

    def write(self, *args: Any, **others: Any) -> None:
        write_table(self.folder / "arms.json", self.table(*args, **others))

    def close(self) -> list[Observation]:
        """What was noted."""
        self.log.close()
        for server in self._servers:
            server.close()
        self._servers = []
        return read_observations(self.folder / "log", 0)[0]

    def _serve(self, arm: Arm) -> Callable[[Call, Outlet], None]:
        def take(call: Call, outlet: Outlet) -> None:
            self.asked.append((arm, call))
            self.behave[arm](call, Responder(outlet, call.request_id))

        return take


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def call_of(prompt: bytes = b"x", *, streaming: bool = True, request_id: str = "", **others: Any) -> Call:
    tensors = {
        "input_ids": np.frombuffer(prompt, np.uint8).astype(np.int32).reshape(1, -1),
        "streaming": scalar_tensor(streaming, np.bool_),
        **others,
    }
    return Call(tensors, request_id, 0)


async def ask(world: World, call: Call) -> tuple[bytes, Tensors]:
    text, last = b"", {}
    async with aclosing(world.router.answer(call)) as responses:
        async for outputs, _ in responses:
            text += bytes(outputs["output_ids"].reshape(-1).astype(np.uint8))
            last = outputs
    return text, last


def run(world: World, work: Any) -> Any:
    async def to_the_end() -> Any:
        try:
            return await asyncio.wait_for(work, 20)
        finally:
            await world.router.end()

    return asyncio.run(to_the_end())


def arm_of(last: Tensors) -> str:
    return str(last["arm"].item().decode())


def test_without_a_rollout_the_stable_pair_answers_and_nothing_is_noted(world: World) -> None:
    router = Router(
        LiveArms(world.folder / "absent", world.table(generation=0, canary_id="")), world.log, VOCABULARY
    )
    world.router = router
    text, last = run(world, ask(world, call_of()))
    assert (text, arm_of(last), last["fallback_from"].item()) == (ANSWER, "stable", b"")
    assert world.close() == []


def test_weights_are_followed_without_a_restart_and_sessions_stay(world: World) -> None:
    async def arms(number: int) -> list[str]:
        session = [text_tensor(f"s{index}") for index in range(number)]
        return [arm_of((await ask(world, call_of(session_id=each)))[1]) for each in session]

    async def scenario() -> None:
        assert set(await arms(20)) == {"stable"}
        world.write(0.5, 0.2)
        first = await arms(40)
        assert set(first) == {"stable", "candidate", "control"}
        assert await arms(40) == first
        world.write(0.5, 0.2, lease_until_s=0.0)
        assert "candidate" not in await arms(40)

    run(world, scenario())


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


def test_the_target_alone_is_the_last_to_stand_in(world: World) -> None:
    world.write(1.0)
    for arm in ("candidate", "stable"):
        world.behave[arm] = fails(EngineFailedError("gone"), after=2)
    text, last = run(world, ask(world, call_of()))
    assert (text, arm_of(last)) == (ANSWER, "control")
    assert last["fallback_from"].item() == b"candidate,stable"


def test_an_arm_that_says_something_else_does_not_go_on_with_the_answer(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"), after=4)
    world.behave["stable"] = world.behave["control"] = answers(b"dex main():")
    with pytest.raises(EngineFailedError, match="gone"):
        run(world, ask(world, call_of()))
    (noted,) = world.close()
    assert noted.failure == "error"


def test_a_slow_candidate_is_helped_out(world: World) -> None:
    world.write(1.0, slow_after_s=0.2)
    world.behave["candidate"] = lambda call, responder: None
    began_s = time.monotonic()
    text, last = run(world, ask(world, call_of()))
    assert (text, arm_of(last)) == (ANSWER, "stable")
    assert time.monotonic() - began_s < 2
    (noted,) = world.close()
    assert noted.fallback_reasons == ("timeout",)


def test_an_arm_that_keeps_failing_is_left_out_and_comes_back(world: World) -> None:
    world.write(1.0)
    world.behave["candidate"] = fails(EngineFailedError("gone"))

    async def scenario() -> None:
        for _ in range(8):
            await ask(world, call_of())
        assert sum(arm == "candidate" for arm, _ in world.asked) == 5
        assert world.router.is_out("candidate")
        world.behave["candidate"] = answers()
        await asyncio.sleep(1.1)
        assert arm_of((await ask(world, call_of()))[1]) == "candidate"
        assert not world.router.is_out("candidate")

    run(world, scenario())


def test_what_is_noted_is_what_was_answered(world: World) -> None:
    world.write()
    run(world, ask(world, call_of(request_id="mine", num_draft_tokens=scalar_tensor(2, np.int32))))
    text, last = run(world, ask(world, call_of(streaming=False)))
    assert text == bytes(last["output_ids"].reshape(-1).astype(np.uint8)) == ANSWER
    assert last["text_length"].item() == last["accepted_mask"].size == len(ANSWER)
    streamed, whole = world.close()
    assert streamed.request_id.startswith("mine/") and streamed.key == "mine"
    assert (streamed.num_output_tokens, streamed.num_rounds, streamed.total_draft_tokens) == (11, 4, 8)
    assert (streamed.accepted_per_position, streamed.draft_length) == ((3, 1), 2)
    assert streamed.ttft_s is not None and streamed.e2e_latency_s is not None
    assert 0 < streamed.ttft_s <= streamed.e2e_latency_s
    assert whole.ttft_s is None
    assert streamed.output_hash == whole.output_hash
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
        async with aclosing(world.router.answer(call_of())) as responses:
            await anext(responses)

    run(world, leave())
    assert world.router.num_open == 0
    assert world.router.num_requests == {("stable", "left"): 1}
    assert world.close() == []


SHADOW = ShadowSetting(share=1.0, max_per_s=1000.0, max_in_flight=2, max_queue=4)


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
    assert (replay.arm, replay.is_replay, replay.request_id) == ("candidate", True, original.request_id)
    stable_call, candidate_call = (call for _, call in world.asked)
    assert stable_call.tensors["seed"].item() == candidate_call.tensors["seed"].item()
    if tokens == "diverged":
        assert replay.divergence is not None
        assert (replay.divergence.prompt, replay.divergence.first_difference) == ("prompt", 5)
        assert (replay.divergence.stable_text, replay.divergence.candidate_text) == (
            "def main():",
            "def mean():",
        )
    else:
        assert replay.divergence is None


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
