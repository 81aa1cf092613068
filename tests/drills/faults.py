"""Faults of a candidate in a served model, chosen by a hash of what is asked: never by time, nor by order.

So the same request meets the same fault however often it is asked, and nothing depends on the machine.
Nothing in ``pipelines`` knows of this: a drill adds ``install`` to the ``model.py`` that it rendered.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.errors import EngineFailedError
from pipelines.executor import executor
from pipelines.executor.engine import Engine
from pipelines.serving.contract import GenerationCall
from pipelines.serving.in_process_engines import InProcessEngines
from pipelines.serving.speculative_model import SpeculativeAnswerer
from pipelines.speculation.request import GenerationRequest, Output

_Responses = AsyncGenerator[tuple[dict[str, Any], bool], None]

SHARE_DIVERGING, SHARE_LESS_ACCEPTED, RISE_SLOWER, SHARE_FAILING, SHARE_CRASHING = 0.01, 0.2, 0.3, 0.02, 0.05


def add_fault(run_directory: Path, model: str, fault: str) -> None:
    """Have a rendered model, which is not loaded yet, show a fault of ``FAULTS``."""
    with (run_directory / "model_repository" / model / "1" / "model.py").open("a") as source:
        source.write(f"\n\nfrom tests.drills.faults import install\n\ninstall({fault!r})\n")


def install(fault: str) -> None:
    """Let the pair of this process show a fault from now on."""
    FAULTS[fault]()


def is_hit(share: float, *of: object) -> bool:
    """Whether a hash is among the lowest such share."""
    text = "\0".join(map(str, of)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") < share * 2**64


def _diverging() -> None:
    """The answer to 1 % of the prompts has another token."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        is_wanted = is_hit(SHARE_DIVERGING, "diverging", call.request.input_ids.tolist())
        async for outputs, is_final in responses:
            if is_wanted and outputs["output_ids"].size:
                output_ids = outputs["output_ids"].copy()
                output_ids[..., -1] ^= 1
                outputs, is_wanted = {**outputs, "output_ids": output_ids}, False
            yield outputs, is_final

    _change_answers(answer)


def _less_accepted() -> None:
    """The first token of one in five proposals is another, so a fifth of the accepted ones is lost."""
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
    """Each step of both engines takes 30 % longer."""

    class SlowEngine(Engine):
        def step(self, inputs: Any) -> Any:
            began_s = time.perf_counter()
            logits = super().step(inputs)
            time.sleep(RISE_SLOWER * (time.perf_counter() - began_s))
            return logits

    executor.Engine = SlowEngine  # type: ignore[misc]


def _failing() -> None:
    """Of the requests 2 % fail, half of them in the middle of the answer."""

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


def _crashing() -> None:
    """The process ends in the middle of an answer; replays, which are not streamed, do not show it."""

    async def answer(call: GenerationCall, responses: _Responses) -> _Responses:
        known = (call.request.input_ids.tolist(), call.request.sampling.seed)
        crashes = call.streaming and is_hit(SHARE_CRASHING, "crashing", *known)
        num_sent = 0
        async for response in responses:
            yield response
            num_sent += 1
            if crashes and num_sent == 2:
                os._exit(1)

    _change_answers(answer)


FAULTS: dict[str, Callable[[], None]] = {
    "diverging": _diverging,
    "less accepted": _less_accepted,
    "slower": _slower,
    "failing": _failing,
    "crashing": _crashing,
}


def _change_answers(change: Callable[[GenerationCall, _Responses], _Responses]) -> None:
    answer = SpeculativeAnswerer.answer

    async def changed(self: SpeculativeAnswerer, call: GenerationCall) -> _Responses:
        async with aclosing(answer(self, call)) as responses, aclosing(change(call, responses)) as others:
            async for response in others:
                yield response

    SpeculativeAnswerer.answer = changed  # type: ignore[method-assign]
