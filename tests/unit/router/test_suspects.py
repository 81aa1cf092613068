"""Tests of requests that end engines' processes: each ends at most two, and others are answered."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import InvalidRequestError, ProcessEndedError
from pipelines.router import suspects
from pipelines.router.arms import ArmTable, Bands, LiveArms
from pipelines.router.suspects import REFUSED_FOR_S, Suspects
from pipelines.wire.calls import CallServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder
from tests.unit.router.router_world import ANSWER, World, ask, chunk_of, request_of

_STARTS_S = 0.3
_RESPONSE_S = 0.03
KILLER = b"kill"


class MortalEngine:
    """A process with both arms that ends when it answers ``KILLER``, and is replaced.

    ``kills_after``: tokens of the answer to ``KILLER`` after which it ends.
    """

    def __init__(self, folder: Path, kills_after: int = 0) -> None:
        self.num_deaths = 0
        self._kills_after = kills_after
        self._paths = folder / "stable.sock", folder / "control.sock"
        self._start()

    def _start(self) -> None:
        self._lives = threading.Event()
        self._servers = [CallServer(path, self._begin) for path in self._paths]

    def _begin(self, request: EngineRequest, outlet: Outlet[Chunk]) -> None:
        threading.Thread(target=self._answer, args=(request, Responder(outlet, ""), self._lives)).start()

    def _answer(self, request: EngineRequest, responder: Responder[Chunk], ended: threading.Event) -> None:
        prompt = bytes(request.input_ids)
        num_known = len(prompt) - (request.prompt_length or len(prompt))
        for end in range(num_known, len(ANSWER) + 1):
            if prompt.startswith(KILLER) and end >= self._kills_after:
                self._die(ended)
            if ended.wait(_RESPONSE_S):
                return
            if end > num_known:
                responder.send(chunk_of(ANSWER[end - 1 : end], end), is_final=end == len(ANSWER))

    def _die(self, ended: threading.Event) -> None:
        if ended.is_set():
            return
        ended.set()
        self.num_deaths += 1
        for path in self._paths:  # nobody reaches it any more
            path.unlink()
        self.close()
        threading.Timer(_STARTS_S, self._start).start()

    def close(self) -> None:
        for server in self._servers:
            server.close()


def router_of(world: World, folder: Path) -> None:
    pair = ArmTable.without_rollout(
        str(folder / "stable.sock"), Bands(2, 8), control=str(folder / "control.sock")
    )
    world.router = world.make_router(LiveArms(folder / "none.json", pair))


async def answered(world: World, prompt: bytes, *, streaming: bool = True) -> Any:
    try:
        return (await ask(world, request_of(prompt, streaming=streaming)))[0]
    except (InvalidRequestError, ProcessEndedError) as error:
        return error


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("kills_after", [0, 5])
def test_a_request_that_ends_two_processes_is_refused_and_those_beside_it_are_answered(
    tmp_path: Path, world: World, kills_after: int, streaming: bool
) -> None:
    engine = MortalEngine(tmp_path, kills_after)
    router_of(world, tmp_path)

    async def scenario() -> None:
        beside = [asyncio.create_task(answered(world, b"%d" % number)) for number in range(6)]
        await asyncio.sleep(2 * _RESPONSE_S)
        refused = await answered(world, KILLER, streaming=streaming)
        assert isinstance(refused, InvalidRequestError) and "two processes" in refused.message
        assert engine.num_deaths == 2
        assert await asyncio.gather(*beside) == [ANSWER] * 6
        began_s = time.monotonic()
        assert isinstance(await answered(world, KILLER), InvalidRequestError)
        assert time.monotonic() - began_s < 0.2 and engine.num_deaths == 2
        assert await answered(world, b"another") == ANSWER
        await world.router.close()

    try:
        asyncio.run(asyncio.wait_for(scenario(), 50))
    finally:
        engine.close()


def test_a_process_that_is_not_reached_does_not_count(tmp_path: Path, world: World) -> None:
    router_of(world, tmp_path)

    async def scenario() -> None:
        waiting = asyncio.create_task(answered(world, b"x"))
        await asyncio.sleep(1.0)  # several attempts
        engine = MortalEngine(tmp_path)
        assert await waiting == ANSWER
        await world.router.close()
        engine.close()

    asyncio.run(asyncio.wait_for(scenario(), 50))


def test_a_refusal_is_forgotten_after_a_while_and_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suspects, "_MOST_REFUSED", 2)
    now_s = 0.0
    refused = Suspects(lambda: now_s)
    refused.refuse("a")
    with pytest.raises(InvalidRequestError, match="10 minutes") as told:
        refused.check("a")
    assert "two processes" in told.value.message
    now_s = REFUSED_FOR_S
    refused.check("a")
    for each in "bcd":
        refused.refuse(each)
    refused.check("b")
    with pytest.raises(InvalidRequestError):
        refused.check("d")


async def test_a_suspect_waits_for_its_turn_no_longer_than_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Suspects()
    first = await waiting.turn(1.0)
    with pytest.raises(ProcessEndedError, match="no turn within"):
        await waiting.turn(0.05)
    first.end()
    monkeypatch.setattr(suspects, "_LONGEST_TURN_S", 0.05)
    await waiting.turn(1.0)  # which nobody ends
    (await waiting.turn(1.0)).end()
