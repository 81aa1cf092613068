"""Answers requests for tokens: from Triton, or from routers over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import InvalidRequestError
from pipelines.speculation.request import GenerationRequest
from pipelines.text.guides import Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.engine.grammars import Grammars
from pipelines.triton.engine.requests import generation_request, guide_of
from pipelines.triton.engine.token_times import TokenTimes
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder, unique_number


class Answerer(Protocol):
    """Decodes: the part that differs between the models."""

    vocabulary: Vocabulary
    end_ids: tuple[int, ...]
    grammars: Grammars | None  # None if the engine follows no grammar

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        """Raise InvalidRequestError for a request that cannot be answered, before it is queued.

        Args:
            asked: The request as it was received.
            request: The request for the engines.
        """

    def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield each chunk."""


class Answering:
    """Answers calls with an answerer: a coroutine for each, which is cancelled when the caller disconnects.

    Attributes:
        loop: The thread of the coroutines.
        vocabulary: Bytes of the tokens.

    Args:
        loop: See the attribute.
        answerer: Decodes requests.
        times: Measures streamed answers.
    """

    def __init__(self, loop: AsyncioThread, answerer: Answerer, times: TokenTimes) -> None:
        self.loop = loop
        self.vocabulary = answerer.vocabulary
        self._answerer = answerer
        self._times = times

    def begin(self, asked: EngineRequest, responder: Responder[Chunk], number: str) -> Future[None]:
        """Start answering a request; ``number`` makes its id unique.

        Raises:
            InvalidRequestError: The request cannot be answered.
        """
        answerer = self._answerer
        request_id = f"{asked.request_id}#{number}"
        request = generation_request(asked, request_id, answerer.vocabulary, answerer.end_ids)
        guide = guide_of(asked)
        if guide is not None and answerer.grammars is None:
            raise InvalidRequestError(
                "this engine follows no grammar",
                values=f"guided_decoding_guide_type={guide.kind}",
                limit="guides need the embedded runtime",
                remedy="leave the guide out, or serve the pair with the embedded runtime",
            )
        answerer.check(asked, request)
        running = self.loop.spawn(self._answer(asked, request, guide, responder))
        responder.follow(running)
        return running

    def take(self, asked: EngineRequest, outlet: Outlet[Chunk]) -> None:
        """Start answering a request from the socket (``wire.call_server.Begin``)."""
        number = unique_number()
        responder = Responder(outlet, number)
        try:
            self.begin(asked, responder, number)
        except Exception as error:
            responder.fail(error)

    async def _answer(
        self,
        asked: EngineRequest,
        request: GenerationRequest,
        guide: Guide | None,
        responder: Responder[Chunk],
    ) -> None:
        note_time = self._times.begin() if asked.streaming else lambda num_tokens, is_final: None
        if guide is not None and self._answerer.grammars is not None:
            request = replace(request, grammar=await self._answerer.grammars.compile(guide))
        async with aclosing(self._answerer.answer(asked, request)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                is_final = bool(chunk.finish_reason)
                responder.send(chunk, is_final=is_final)
                note_time(chunk.sequence_length, is_final)
