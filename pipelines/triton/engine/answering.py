"""Answers requests for tokens: from Triton, or from routers over a socket.

If the client disconnects or the server shuts down, the answer is cancelled and its KV blocks are freed.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import InvalidRequestError
from pipelines.speculation.loop import EngineStream
from pipelines.speculation.request import GenerationRequest
from pipelines.text.guides import GUIDE_TYPES, Guide
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import WordKind, check_words
from pipelines.triton.backend.gauges import TokenTimes
from pipelines.triton.backend.header import Header
from pipelines.triton.backend.inputs import Inputs, engine_request
from pipelines.triton.backend.model import TritonModel
from pipelines.triton.backend.outputs import engine_outputs
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.chunks import ChunkStream
from pipelines.triton.engine.grammars import Grammars
from pipelines.wire.calls import CallServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder, unique_number

MAX_STOP_TOKEN_IDS = 32
MAX_PREDICTION_IDS = 1 << 20


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
        """Start answering a request from the socket (``wire.calls.Begin``)."""
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


class GenerationModel(TritonModel):
    """Answers Triton's requests for tokens.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.
        services: Who answers, by the arm that the gateway adds, "" without one. All have the same loop,
            which runs, and is stopped by ``close``.
        sockets: Answer the calls of other models with the same engines; closed by ``close``.
        on_close: Called at the end of ``close``.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        backend: Any,
        services: Mapping[str, Answering],
        sockets: Sequence[CallServer] = (),
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = services[""].loop
        super().__init__(backend, parameters.input_names, self._loop, engine_outputs)
        self._services = services
        self._sockets = sockets
        self._on_close = on_close

    def close(self) -> None:
        """Cancel all running requests and send the last responses."""
        self._loop.stop()
        for socket in self._sockets:
            socket.close()
        super().close()
        self._on_close()

    def _begin(self, header: Header, inputs: Inputs, responder: Responder[Chunk], number: str) -> None:
        if header.arm not in self._services:
            raise InvalidRequestError(
                f"this model has no arm {header.arm!r:.100}", "send the request to another model"
            )
        service = self._services[header.arm]
        asked = engine_request(inputs, service.vocabulary, header.client_id, header.timeout_us)
        service.begin(asked, responder, number)


def generation_request(
    asked: EngineRequest, request_id: str, vocabulary: Vocabulary, end_ids: tuple[int, ...]
) -> GenerationRequest:
    """Return the request for the engines, without the grammar of its guide. Its time limit begins now.

    Args:
        asked: The request.
        request_id: Id of the request inside the server.
        vocabulary: Bytes of the tokens.
        end_ids: End tokens of the engine. The request's own ``end_id`` replaces them.

    Raises:
        InvalidRequestError: A value is none that a request may have. Ranges that depend on the engine are
            checked later.
    """
    if asked.end_id is not None:
        end_ids = (asked.end_id,) if asked.end_id >= 0 else ()
    _check_tokens("stop_token_ids", asked.stop_token_ids, MAX_STOP_TOKEN_IDS, vocabulary)
    _check_tokens("prediction_ids", asked.prediction_ids, MAX_PREDICTION_IDS, vocabulary)
    check_words(asked.stop, WordKind.STOP)
    check_words(asked.bad_words, WordKind.BAD)
    return GenerationRequest(
        request_id=request_id,
        input_ids=np.array(asked.input_ids, np.int32),
        max_tokens=asked.max_tokens,
        prompt_length=asked.prompt_length,
        sampling=asked.sampling,
        end_ids=(*end_ids, *asked.stop_token_ids),
        stop_words=asked.stop,
        bad_words=asked.bad_words,
        num_log_probs=asked.num_log_probs,
        prompt_log_probs=asked.return_prompt_log_probs,
        deadline_s=time.monotonic() + asked.timeout_us / 1e6 if asked.timeout_us else None,
        cache_salt=asked.cache_salt,
    )


def guide_of(asked: EngineRequest) -> Guide | None:
    """Return what the output follows; None for nothing.

    Raises:
        InvalidRequestError: It has no type or no text.
    """
    if asked.guide is None:
        return None
    kind, text = asked.guide
    if not kind or (not text and kind != "json"):
        raise InvalidRequestError(
            f"guided_decoding_guide_type={kind!r:.100} with a guide of {len(text)} characters",
            f"send one of {', '.join(GUIDE_TYPES)} and a guide, without which only json has a meaning",
        )
    return Guide(kind, text)


def _check_tokens(name: str, ids: Sequence[int], most: int, vocabulary: Vocabulary) -> None:
    if len(ids) > most or (ids and not 0 <= min(ids) <= max(ids) < vocabulary.size):
        raise InvalidRequestError(
            f"{name} has {len(ids)} ids, {list(ids[:20])!r:.200}: at most {most} may be sent, each from 0 to "
            f"{vocabulary.size - 1}",
            "send tokens of the model's vocabulary",
        )
