"""Answers requests for tokens: from Triton, or from other models of the server over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, Protocol

import numpy.typing as npt

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import InvalidRequestError
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.engine.grammars import Grammars
from pipelines.triton.engine.token_times import TokenTimes
from pipelines.wire.calls import Call
from pipelines.wire.engine_request import GenerationCall, parse_call
from pipelines.wire.responder import Outlet, Responder, unique_number


class Answerer(Protocol):
    """Decodes: the part that differs between the models."""

    vocabulary: Vocabulary
    end_ids: tuple[int, ...]
    grammars: Grammars | None  # None if the engine follows no grammar

    def check(self, call: GenerationCall) -> None:
        """Raise InvalidRequestError for a request that cannot be answered, before it is queued."""

    def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Mapping[str, npt.NDArray[Any]], bool]]:
        """Yield the tensors of each response, and whether it is the last."""


class Answering:
    """Answers calls with an answerer: a coroutine for each, which is cancelled when the caller disconnects.

    Attributes:
        loop: The thread of the coroutines.

    Args:
        loop: See the attribute.
        answerer: Decodes requests.
        times: Measures streamed answers.
    """

    def __init__(self, loop: AsyncioThread, answerer: Answerer, times: TokenTimes) -> None:
        self.loop = loop
        self._answerer = answerer
        self._times = times

    def begin(self, call: Call, responder: Responder, number: str) -> Future[None]:
        """Start answering a call; ``number`` makes its id unique.

        Raises:
            InvalidRequestError: The call cannot be answered.
        """
        answerer = self._answerer
        request_id = f"{call.request_id}#{number}"
        parsed = parse_call(call.tensors, request_id, answerer.vocabulary, answerer.end_ids, call.timeout_us)
        if parsed.guide is not None and answerer.grammars is None:
            raise InvalidRequestError(
                "this engine follows no grammar",
                values=f"guided_decoding_guide_type={parsed.guide.kind}",
                limit="guides need the embedded runtime",
                remedy="leave the guide out, or serve the pair with the embedded runtime",
            )
        answerer.check(parsed)
        running = self.loop.spawn(self._answer(parsed, responder))
        responder.follow(running)
        return running

    def take_call(self, call: Call, outlet: Outlet) -> None:
        """Start answering a call of another model of this server (``sockets.server.Begin``)."""
        number = unique_number()
        responder = Responder(outlet, number)
        try:
            self.begin(call, responder, number)
        except Exception as error:
            responder.fail(error)

    async def _answer(self, call: GenerationCall, responder: Responder) -> None:
        note_time = self._times.begin() if call.streaming else lambda num_tokens, is_final: None
        if self._answerer.grammars is not None:
            call = await self._answerer.grammars.compile(call)
        async with aclosing(self._answerer.answer(call)) as responses:  # type: ignore[type-var]
            async for outputs, is_final in responses:
                responder.send(outputs, is_final=is_final)
                note_time(int(outputs["sequence_length"].item()), is_final)
