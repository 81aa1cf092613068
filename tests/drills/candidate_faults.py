"""Faults of a candidate in a served model, chosen by a hash of the request, never by time or order.

The same request therefore meets the same fault every time, on any machine. Nothing in ``pipelines`` knows
about faults: a drill adds ``install`` to the ``model.py`` that it rendered.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.canary.run_files import arms_file
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.errors import EngineFailedError
from pipelines.executor import loading
from pipelines.executor.engine import Engine
from pipelines.router.arms import read_table
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.engine.speculative_answerer import SpeculativeAnswerer
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest

_Chunks = AsyncIterator[Chunk]
_Change = Callable[[EngineRequest, _Chunks, Path], _Chunks]

SHARE_DIVERGING, SHARE_LESS_ACCEPTED, RISE_SLOWER, SHARE_FAILING, SHARE_CRASHING = 0.01, 0.2, 0.3, 0.02, 0.05
SHARE_STOPPING, SHARE_SHORT, SHARE_OTHER_TEXT, SHARE_LOG_PROBS, SHARE_CHUNKS = (0.03, 0.02, 0.02, 0.1, 0.03)
SHARE_PAUSING, PAUSE_S = 0.04, 0.6
LEAKED_BYTES = 1 << 20
"""Per answer."""


def add_fault(run_directory: Path, of_the_router: Path, fault: str) -> None:
    """Add a fault of ``FAULTS`` to a rendered pair that is not loaded yet.

    Args:
        run_directory: Run directory of the pair's server.
        of_the_router: Run directory with the table of arms.
        fault: The fault.
    """
    with (run_directory / "model_repository" / LOOP / "1" / "model.py").open("a") as source:
        source.write(f"\n\nfrom {__name__} import install\n\ninstall({fault!r}, {str(of_the_router)!r})\n")


def install(fault: str, run_directory: str) -> None:
    """Make the pair of this process show a fault from now on."""
    if fault in ANSWERS:
        _change_answers(ANSWERS[fault], Path(run_directory))
    else:
        OTHERS[fault]()


def is_hit(share: float, *of: object) -> bool:
    """Return whether a hash falls into the lowest `share` of its range."""
    text = "\0".join(map(str, of)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") < share * 2**64


def _request(asked: EngineRequest) -> tuple[object, ...]:
    return asked.input_ids, asked.sampling.seed


async def _diverging(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
    """Change one token of the answers to 1 % of the prompts."""
    is_wanted = is_hit(SHARE_DIVERGING, "diverging", asked.input_ids)
    async for chunk in chunks:
        if is_wanted and chunk.output_ids:
            *ids, last = chunk.output_ids
            chunk, is_wanted = replace(chunk, output_ids=(*ids, last ^ 1)), False
        yield chunk


async def _failing(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
    """Fail 2 % of the requests, half of them in the middle of the answer."""
    fails = is_hit(SHARE_FAILING, "failing", *_request(asked))
    num_before = 2 * is_hit(0.5, "in the middle", *_request(asked))
    async for chunk in chunks:
        if fails and not num_before:
            raise EngineFailedError("a drill's candidate fails by a hash", "roll it back")
        num_before -= 1
        yield chunk


async def _crashing(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
    """End the process in the middle of an answer, once clients are among those who ask."""
    crashes = is_hit(SHARE_CRASHING, "crashing", *_request(asked)) and _answers_clients(run_directory)
    num_sent = 0
    async for chunk in chunks:
        yield chunk
        num_sent += 1
        if crashes and num_sent == 2:
            os._exit(1)


def _answers_clients(run_directory: Path) -> bool:
    return read_table(arms_file(run_directory)).weights(time.time()).get("candidate", 0.0) > 0


async def _wrong_chunks(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
    """Report a wrong length in the first chunk of the answers to 3 % of the prompts."""
    is_wanted = is_hit(SHARE_CHUNKS, "chunks", asked.input_ids)
    async for chunk in chunks:
        if is_wanted and not chunk.finish_reason:
            chunk, is_wanted = replace(chunk, sequence_length=chunk.sequence_length + 1), False
        yield chunk


async def _pausing(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
    """Pause 4 % of the answers for 0.6 s after their second chunk."""
    pauses = is_hit(SHARE_PAUSING, "pausing", asked.input_ids)
    num_sent = 0
    async for chunk in chunks:
        if pauses and num_sent == 2:
            await asyncio.sleep(PAUSE_S)
        yield chunk
        num_sent += 1


_LEAKED: list[bytes] = []


async def _leaking(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
    """Leak a megabyte per answer."""
    _LEAKED.append(os.urandom(1) * LEAKED_BYTES)
    async for chunk in chunks:
        yield chunk


def _changing_last(share: str, change: Callable[[Chunk], Chunk]) -> _Change:
    """Change the last chunk of the answers to a share of the prompts."""

    async def answer(asked: EngineRequest, chunks: _Chunks, run_directory: Path) -> _Chunks:
        is_wanted = is_hit(globals()[share], share, asked.input_ids)
        async for chunk in chunks:
            yield change(chunk) if is_wanted and chunk.finish_reason else chunk

    return answer


def _other_log_probs(chunk: Chunk) -> Chunk:
    """Add 0.001 to a log probability of a request that asks for them."""
    if not chunk.log_probs:
        return chunk
    *values, last = chunk.log_probs
    return replace(chunk, log_probs=(*values, last + 0.001), cum_log_prob=chunk.cum_log_prob + 0.001)


def _change_answers(change: _Change, run_directory: Path) -> None:
    answer = SpeculativeAnswerer.answer

    async def changed(self: SpeculativeAnswerer, asked: EngineRequest, request: GenerationRequest) -> _Chunks:
        async with (
            aclosing(answer(self, asked, request)) as chunks,  # type: ignore[type-var]
            aclosing(change(asked, chunks, run_directory)) as others,  # type: ignore[type-var]
        ):
            async for chunk in others:
                yield chunk

    SpeculativeAnswerer.answer = changed  # type: ignore[method-assign]


def _short() -> None:
    """End the answers to 2 % of the prompts one token early, as if the request had asked for it."""
    begin = SpeculativeAnswerer.answer

    async def answer(self: SpeculativeAnswerer, asked: EngineRequest, request: GenerationRequest) -> _Chunks:
        if is_hit(SHARE_SHORT, "short", asked.input_ids):
            request = replace(request, max_tokens=request.max_tokens - 1)
        async with aclosing(begin(self, asked, request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk

    SpeculativeAnswerer.answer = answer  # type: ignore[method-assign]


def _less_accepted() -> None:
    """Replace the first token of one proposal in five, which removes a fifth of the accepted tokens."""
    load = InProcessEngines.__init__

    def load_and_spoil(self: InProcessEngines, *arguments: Any) -> None:
        load(self, *arguments)
        complete = self.draft

        async def propose(request: GenerationRequest) -> Output:
            output = await complete(request)
            known = (request.input_ids.tolist(), request.sampling.seed)
            if not len(output.token_ids) or not is_hit(SHARE_LESS_ACCEPTED, "less accepted", *known):
                return output
            token_ids = output.token_ids.copy()
            token_ids[0] ^= 1
            return replace(output, token_ids=token_ids)

        self.draft = propose

    InProcessEngines.__init__ = load_and_spoil  # type: ignore[method-assign]


def _slower() -> None:
    """Make each step of both engines take 30 % longer."""

    class SlowEngine(Engine):
        def step(self, inputs: Any) -> Any:
            began_s = time.perf_counter()
            logits = super().step(inputs)
            time.sleep(RISE_SLOWER * (time.perf_counter() - began_s))
            return logits

    loading.Engine = SlowEngine  # type: ignore[misc]


def _burning() -> None:
    """Run a thread that uses as much CPU time as all others together."""

    def burn() -> None:
        while True:
            if time.process_time() - time.thread_time() > time.thread_time():
                hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)  # without the GIL
            else:
                time.sleep(0.005)

    threading.Thread(target=burn, daemon=True).start()


ANSWERS: dict[str, _Change] = {
    "diverging": _diverging,
    "failing": _failing,
    "crashing": _crashing,
    # the answer was cut off
    "stopping": _changing_last("SHARE_STOPPING", lambda chunk: replace(chunk, finish_reason="stop")),
    # the tokens stay right
    "other text": _changing_last(
        "SHARE_OTHER_TEXT", lambda chunk: replace(chunk, text_length=max(0, chunk.text_length - 1))
    ),
    "other log probabilities": _changing_last("SHARE_LOG_PROBS", _other_log_probs),
    "wrong chunks": _wrong_chunks,
    "pausing": _pausing,
    "leaking": _leaking,
}
OTHERS: dict[str, Callable[[], None]] = {
    "short": _short,
    "less accepted": _less_accepted,
    "slower": _slower,
    "burning": _burning,
}
FAULTS = (*ANSWERS, *OTHERS)
