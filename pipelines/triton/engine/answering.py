"""Answers requests for tokens: from Triton, or from routers over a socket."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import InvalidRequestError
from pipelines.speculation.loop import EngineStream
from pipelines.speculation.request import GenerationRequest
from pipelines.text.guides import Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.gauges import Gauges
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.grammars import Grammars
from pipelines.triton.engine.requests import generation_request, guide_of
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder, unique_number

# Seconds: from a cached prompt on a small engine to a long prompt on a busy one.
_TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)


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


@dataclass
class TargetAlone:
    """Answers requests with the target, without any code of the loop.

    Attributes:
        vocabulary: Bytes of its tokens.
        end_ids: Its end tokens.
        refuse: Raises InvalidRequestError for a request that the target cannot answer.
        generate: Streams the target's output.
        grammars: Compiles guides; None to refuse them.
        num_output_tokens: Tokens of all answers so far.
    """

    vocabulary: Vocabulary
    end_ids: tuple[int, ...]
    refuse: Callable[[GenerationRequest], None]
    generate: EngineStream
    grammars: Grammars | None = None
    num_output_tokens: int = 0

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        """Refuse a request that the target cannot answer."""
        self.refuse(request)

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Yield each chunk."""
        chunks = ChunkStream(self.vocabulary, request, streaming=asked.streaming)
        async with aclosing(self.generate(request)) as outputs:
            async for output in outputs:
                self.num_output_tokens += len(output.token_ids)
                chunk = chunks.push(output)
                if chunk is not None:
                    yield chunk


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

    def begin(self, asked: EngineRequest, responder: Responder[Chunk], number: str) -> None:
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
                f"guided_decoding_guide_type={guide.kind} needs an engine of the embedded runtime",
                "leave the guide out, or serve the pair with the embedded runtime",
            )
        answerer.check(asked, request)
        responder.follow(self.loop.spawn(self._answer(asked, request, guide, responder)))

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


class TokenTimes:
    """Measures the time to first token and between later ones, when responses are handed on.

    Args:
        gauges: Publishes the two histograms; must not be started yet.
        clock: Monotonic time in seconds.
        labels: Labels of the histograms; see ``Gauges.add_histogram``.
    """

    def __init__(self, gauges: Gauges, clock: Callable[[], float] = time.monotonic, **labels: str) -> None:
        self._observe_ttft = gauges.add_histogram("draftproof_ttft_seconds", _TTFT_BUCKETS, **labels)
        self._observe_itl = gauges.add_histogram("draftproof_itl_seconds", _ITL_BUCKETS, **labels)
        self._clock = clock

    def begin(self) -> Callable[[int, bool], None]:
        """Record the arrival of a request.

        Returns:
            A function to call for each response with the output tokens so far and whether it is the last.
        """
        taken_s = self._clock()
        first_s: float | None = None
        num_first = 0

        def note(num_tokens: int, is_final: bool) -> None:
            nonlocal first_s, num_first
            now_s = self._clock()
            if first_s is None and num_tokens:
                first_s, num_first = now_s, num_tokens
                self._observe_ttft(now_s - taken_s)
            if is_final and first_s is not None and num_tokens > num_first:
                self._observe_itl((now_s - first_s) / (num_tokens - 1))

        return note
