"""A router in front of three real sockets whose answers a test decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pipelines.errors import DraftproofError
from pipelines.router.arms import Arm, ArmTable, Bands, LiveArms, write_table
from pipelines.router.observation import Observation
from pipelines.router.observation_log import ObservationLog, read_observations
from pipelines.router.router import Router
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.calls import CallServer
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder

VOCABULARY = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
ANSWER = b"def main():"

Behave = Callable[[EngineRequest, Responder[Chunk]], None]
Change = Callable[[Chunk], Chunk]


def chunk_of(tokens: bytes, end: int, *, drafts: bool = True, of: int = len(ANSWER)) -> Chunk:
    """Return a chunk of these tokens, after which the answer has ``end`` of ``of``."""
    is_last = end == of
    return Chunk(
        text="",
        text_length=len(tokens),
        output_ids=tuple(tokens),
        accepted_mask=(False,) * len(tokens),
        token_sources=(0,) * len(tokens),
        finish_reason="length" if is_last else "",
        received_at_s=0.0,
        sequence_length=end,
        counts=SpeculationCounts(4, 8, 4, (3, 1)) if drafts else None,
        drafted_per_round=(0, 2, 4, 2) if drafts and is_last else (),
        accepted_per_round=(0, 2, 1, 1) if drafts and is_last else (),
    )


def answers(
    text: bytes = ANSWER, *, size: int = 3, delay_s: float = 0.0, change: Change = lambda chunk: chunk
) -> Behave:
    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        time.sleep(delay_s)
        is_rest = request.prompt_length is not None
        rest = text[len(request.input_ids) - (request.prompt_length or 0) :] if is_rest else text
        step = size if request.streaming else max(1, len(rest))
        for begin in range(0, max(1, len(rest)), step):
            end = min(begin + step, len(rest))
            chunk = chunk_of(rest[begin:end], end, of=len(rest))
            if request.num_log_probs is not None:
                chunk = with_log_probs(chunk, rest)
            responder.send(change(chunk), is_final=end == len(rest))

    return behave


def with_log_probs(chunk: Chunk, text: bytes) -> Chunk:
    """Return a chunk with log probabilities from its bytes, and their sum so far, as our models do."""
    end = chunk.sequence_length
    begin = end - len(chunk.output_ids)
    values = [float(np.float32(byte) / np.float32(-100.3)) for byte in text]
    return replace(
        chunk,
        log_probs=tuple(values[begin:end]),
        cum_log_prob=sum(values[:end]),
        top_log_probs=tuple(((place, values[place]),) for place in range(begin, end)),
    )


def fails(error: DraftproofError, after: int = 0) -> Behave:
    def behave(request: EngineRequest, responder: Responder[Chunk]) -> None:
        if after:
            chunk = chunk_of(ANSWER[:after], after, of=0)
            if request.num_log_probs is not None:
                chunk = with_log_probs(chunk, ANSWER)
            responder.send(chunk, is_final=False)
        responder.fail(error)

    return behave


class World:
    """Three sockets and a router in front of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[Arm, EngineRequest]] = []
        self.behave: dict[Arm, Behave] = {}
        self._servers: list[CallServer] = []
        names: tuple[Arm, ...] = ("stable", "candidate", "control")
        for arm in names:
            self.behave[arm] = answers()
            self._servers.append(CallServer(folder / arm, self._serve(arm)))
        self.log = ObservationLog(folder / "log")
        self.router = self.make_router(LiveArms(folder / "arms.json", self.table()))

    def make_router(self, arms: LiveArms) -> Router:
        return Router(SimpleNamespace(vocabulary=VOCABULARY), arms, self.log)  # type: ignore[arg-type]

    def table(self, candidate: float | None = 0.0, **others: Any) -> ArmTable:
        given: dict[str, Any] = {
            "generation": 1,
            "canary_id": "c1",
            "salt": "s",
            "shadow": None,
            "replays_match": "stable",
            "bands": Bands(2, 4),
            "lease_until_s": time.time() + 60,
            "slow_after_s": 5.0,
            "control": str(self.folder / "control"),
        }
        return ArmTable(
            stable=str(self.folder / "stable"),
            candidate="" if candidate is None else str(self.folder / "candidate"),
            candidate_weight=candidate or 0.0,
            **{**given, **others},
        )

    def write(self, *args: Any, **others: Any) -> None:
        write_table(self.folder / "arms.json", self.table(*args, **others))

    def close(self) -> list[Observation]:
        """Close everything and return the observations."""
        self.log.close()
        for server in self._servers:
            server.close()
        self._servers = []
        return read_observations(self.folder / "log", 0)[0]

    def _serve(self, arm: Arm) -> Callable[[EngineRequest, Outlet[Chunk]], None]:
        def take(request: EngineRequest, outlet: Outlet[Chunk]) -> None:
            self.asked.append((arm, request))
            self.behave[arm](request, Responder(outlet, request.request_id))

        return take


def request_of(prompt: bytes = b"x", *, seed: int = 3, **others: Any) -> EngineRequest:
    sampling = SamplingParams(temperature=others.pop("temperature", 0.0), seed=seed)
    return EngineRequest(tuple(prompt), others.pop("max_tokens", 64), sampling=sampling, **others)


async def ask(world: World, request: EngineRequest, arm: str = "") -> tuple[bytes, Chunk]:
    text, last = b"", None
    async with aclosing(world.router.answer_tokens(request, arm)) as chunks:
        async for chunk in chunks:
            text += bytes(chunk.output_ids)
            last = chunk
    assert last is not None
    return text, last


def run(world: World, work: Any) -> Any:
    async def to_the_end() -> Any:
        try:
            return await asyncio.wait_for(work, 20)
        finally:
            await world.router.close()

    return asyncio.run(to_the_end())
