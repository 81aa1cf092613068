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
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.canary.run_files import arms_file
from pipelines.errors import EngineFailedError
from pipelines.executor import executor
from pipelines.executor.engine import Engine
from pipelines.router.arms import read_table
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.engine.speculative_model import SpeculativeAnswerer
from pipelines.wire.engine_request import GenerationCall
from pipelines.wire.tensors import text_tensor

_Outputs = dict[str, Any]
_Responses = AsyncGenerator[tuple[_Outputs, bool], None]

SHARE_DIVERGING, SHARE_LESS_ACCEPTED, RISE_SLOWER, SHARE_FAILING, SHARE_CRASHING = 0.01, 0.2, 0.3, 0.02, 0.05
SHARE_STOPPING, SHARE_SHORT, SHARE_OTHER_TEXT, SHARE_LOG_PROBS, SHARE_CHUNKS = (
    0.03,
    0.02,
    0.02,
    0.1,
    0.03,
)
SHARE_PAUSING, PAUSE_S = 0.04, 0.6
LEAKED_BYTES = 1 << 20
"""Per answer."""


def add_fault(run_directory: Path, model: str, fault: str) -> None:
    """Add a fault of ``FAULTS`` to a rendered model that is not loaded yet."""
    with (run_directory / "model_repository" / model / "1" / "model.py").open("a") as source:
        source.write(
            f"\n\nfrom tests.drills.faults import install\n\ninstall({fault!r}, {str(run_directory)!r})\n"
        )


def install(fault: str, run_directory: str) -> None:
    """Make the pair of this process show a fault from now on."""
    FAULTS[fault](Path(run_directory))


def is_hit(share: float, *of: object) -> bool:
    """Return whether a hash falls into the lowest `share` of its range."""
    text = "\0".join(map(str, of)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") < share * 2**64


def _diverging(run_directory: Path) -> None:
    """Change one token of the answers to 1 % of the prompts."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        is_wanted = is_hit(SHARE_DIVERGING, "diverging", call.request.input_ids.tolist())
        async for outputs, is_final in responses:
            if is_wanted and outputs["output_ids"].size:
                output_ids = outputs["output_ids"].copy()
                output_ids[..., -1] ^= 1
                outputs, is_wanted = {**outputs, "output_ids": output_ids}, False
            yield outputs, is_final

    _change_answers(answer)


def _less_accepted(run_directory: Path) -> None:
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


def _slower(run_directory: Path) -> None:
    """Make each step of both engines take 30 % longer."""

    class SlowEngine(Engine):
        def step(self, inputs: Any) -> Any:
            began_s = time.perf_counter()
            logits = super().step(inputs)
            time.sleep(RISE_SLOWER * (time.perf_counter() - began_s))
            return logits

    executor.Engine = SlowEngine  # type: ignore[misc]


def _failing(run_directory: Path) -> None:
    """Fail 2 % of the requests, half of them in the middle of the answer."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        known = (call.request.input_ids.tolist(), call.request.sampling.seed)
        fails = is_hit(SHARE_FAILING, "failing", *known)
        num_before = 2 * is_hit(0.5, "in the middle", *known)
        async for response in responses:
            if fails and not num_before:
                raise EngineFailedError(
                    "a drill's candidate fails", values="by a hash", limit="none", remedy="roll it back"
                )
            num_before -= 1
            yield response

    _change_answers(answer)


def _crashing(run_directory: Path) -> None:
    """End the process in the middle of an answer, once clients are among those who ask."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        known = (call.request.input_ids.tolist(), call.request.sampling.seed)
        crashes = is_hit(SHARE_CRASHING, "crashing", *known) and _answers_clients(run_directory)
        num_sent = 0
        async for response in responses:
            yield response
            num_sent += 1
            if crashes and num_sent == 2:
                os._exit(1)

    _change_answers(answer)


def _answers_clients(run_directory: Path) -> bool:
    return read_table(arms_file(run_directory)).weights(time.time()).get("candidate", 0.0) > 0


def _stopping(run_directory: Path) -> None:
    """Report that the answers to 3 % of the prompts stopped, although they were cut off."""
    _change_last(SHARE_STOPPING, "stopping", lambda outputs: {"finish_reason": text_tensor("stop")})


def _short(run_directory: Path) -> None:
    """End the answers to 2 % of the prompts one token early, as if the request had asked for it."""
    begin = SpeculativeAnswerer.answer

    async def answer(self: SpeculativeAnswerer, call: GenerationCall) -> _Responses:
        if is_hit(SHARE_SHORT, "short", call.request.input_ids.tolist()):
            call = replace(call, request=replace(call.request, max_tokens=call.request.max_tokens - 1))
        async with aclosing(begin(self, call)) as responses:
            async for response in responses:
                yield response

    SpeculativeAnswerer.answer = answer  # type: ignore[method-assign]


def _other_text(run_directory: Path) -> None:
    """Drop the last byte of the text for 2 % of the prompts; the tokens stay right."""

    def change(outputs: _Outputs) -> _Outputs:
        return {"text_length": np.maximum(outputs["text_length"] - 1, 0)}

    _change_last(SHARE_OTHER_TEXT, "other text", change)


def _other_log_probs(run_directory: Path) -> None:
    """Add 0.001 to a log probability in 10 % of the requests that ask for them."""

    def change(outputs: _Outputs) -> _Outputs:
        if not outputs["output_log_probs"].size:
            return {}
        rise = np.float32(0.001)
        log_probs, total = outputs["output_log_probs"].copy(), outputs["cum_log_probs"] + rise
        log_probs[..., -1] += rise
        return {"output_log_probs": log_probs, "cum_log_probs": total}

    _change_last(SHARE_LOG_PROBS, "other log probabilities", change)


def _wrong_chunks(run_directory: Path) -> None:
    """Report a wrong length in the first response to 3 % of the prompts."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        is_wanted = is_hit(SHARE_CHUNKS, "chunks", call.request.input_ids.tolist())
        async for outputs, is_final in responses:
            if is_wanted and not is_final:
                outputs, is_wanted = {**outputs, "sequence_length": outputs["sequence_length"] + 1}, False
            yield outputs, is_final

    _change_answers(answer)


def _pausing(run_directory: Path) -> None:
    """Pause 4 % of the answers for 0.6 s after their second response."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        pauses = is_hit(SHARE_PAUSING, "pausing", call.request.input_ids.tolist())
        num_sent = 0
        async for response in responses:
            if pauses and num_sent == 2:
                await asyncio.sleep(PAUSE_S)
            yield response
            num_sent += 1

    _change_answers(answer)


def _leaking(run_directory: Path) -> None:
    """Leak a megabyte per answer."""
    left: list[bytes] = []

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        left.append(os.urandom(1) * LEAKED_BYTES)
        async for response in responses:
            yield response

    _change_answers(answer)


def _burning(run_directory: Path) -> None:
    """Run a thread that uses as much CPU time as all others together."""

    def burn() -> None:
        while True:
            if time.process_time() - time.thread_time() > time.thread_time():
                hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)  # without the GIL
            else:
                time.sleep(0.005)

    threading.Thread(target=burn, daemon=True).start()


FAULTS: dict[str, Callable[[Path], None]] = {
    "diverging": _diverging,
    "less accepted": _less_accepted,
    "slower": _slower,
    "failing": _failing,
    "crashing": _crashing,
    "stopping": _stopping,
    "short": _short,
    "other text": _other_text,
    "other log probabilities": _other_log_probs,
    "wrong chunks": _wrong_chunks,
    "pausing": _pausing,
    "leaking": _leaking,
    "burning": _burning,
}


def _change_last(share: float, name: str, change: Callable[[_Outputs], _Outputs]) -> None:
    """Change the last response to a share of the prompts."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        is_wanted = is_hit(share, name, call.request.input_ids.tolist())
        async for outputs, is_final in responses:
            if is_wanted and is_final:
                outputs = {**outputs, **change(outputs)}
            yield outputs, is_final

    _change_answers(answer)


def _change_answers(change: Callable[[GenerationCall, _Responses], _Responses]) -> None:
    answer = SpeculativeAnswerer.answer

    async def changed(self: SpeculativeAnswerer, call: GenerationCall) -> _Responses:
        async with aclosing(answer(self, call)) as responses, aclosing(change(call, responses)) as others:
            async for response in others:
                yield response

    SpeculativeAnswerer.answer = changed  # type: ignore[method-assign]
