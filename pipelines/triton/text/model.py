"""Serves the text models: ``generate``, ``generate_target`` and ``router``.

They tokenize and detokenize themselves and get the tokens in between from the process of ``speculative`` or
``target``, over its socket. The model ``ensemble`` does the same with two more hops through Triton for each
chunk, and does not notice that its client has left
(``docs/decisions/request-path.md``).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import RequestTimeoutError
from pipelines.router.outputs import StreamedOutputs
from pipelines.router.preprocessing import NUM_THREADS
from pipelines.time_limit import within
from pipelines.triton.backend.header import Header, ServerKey, read_header
from pipelines.triton.backend.outbox import Outbox
from pipelines.triton.backend.outlet import TritonOutlet
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.triton.engine.model import CLOSE_TIMEOUT_S
from pipelines.wire.admission import OpenLimit
from pipelines.wire.call_server import CallServer
from pipelines.wire.calls import Call, Responses, Tensors, stream
from pipelines.wire.responder import Outlet, Responder, unique_number
from pipelines.wire.tensors import Inputs, read_scalar, scalar_tensor

# Up to three engines answer for one text model (stable pair, candidate, target alone), each with its own
# limits. Requests beyond their sum would only be refused there, after a connection.
_NUM_ENGINES = 3


class OutputsOf(Protocol):
    """Converts the outputs of an engine's response into those of the text model."""

    def __call__(self, outputs: Tensors, *, is_final: bool) -> Tensors:
        """Convert the next response."""


class TextModel:
    """Answers Triton's requests.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.
        answer: Streams the tokens of an answer.
        on_end: Runs on the loop of ``answer`` before the running requests are cancelled.
        on_close: Called at the end of ``close``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
        RepositoryError: A setting is missing.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        backend: Any,
        answer: Callable[[Call], Responses],
        on_end: Callable[[], Coroutine[Any, Any, None]] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._parameters = parameters
        self._preprocess = parameters.preprocessing()
        self._vocabulary = self._preprocess.vocabulary
        self._wire = TritonWire(backend)
        self._answer = answer
        self._on_end = on_end
        self._on_close = on_close
        self._outbox = Outbox()
        max_running = parameters.integer("max_batch_size") + parameters.integer("max_queue_size")
        self._open = OpenLimit(_NUM_ENGINES * max_running)
        self._tokenizing = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="tokenize")
        self._loop = AsyncioThread("requests")
        self._loop.start()
        self._key = ServerKey()
        self._calls = None
        if "socket" in parameters.values:
            self._calls = CallServer(parameters.path("socket"), self._take_call)

    def execute(self, requests: list[Any]) -> None:
        """Start answering requests from Triton; does not wait for the answers."""
        for request in requests:
            number = unique_number()
            responder = Responder(TritonOutlet(self._wire, request, self._outbox, number), number)
            try:
                header = read_header(request, self._parameters.input_names, self._key)
                if header.is_ping:
                    self._loop.spawn(_answer_ping(responder))
                    continue
                self._count(responder)
                inputs = self._wire.inputs(request)
                streaming = bool(read_scalar(inputs, "stream", bool, False))
                outputs_of = self._outputs_of(inputs)
                if self._preprocess.is_quick(inputs):
                    tensors = self._preprocess(inputs)
                    answering = self._answer_text(tensors, header, streaming, responder, outputs_of)
                else:
                    answering = self._tokenize_and_answer(inputs, header, streaming, responder, outputs_of)
                responder.follow(self._loop.spawn(answering))
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel all running requests and send the last responses."""
        if self._on_end is not None:
            self._loop.spawn(self._on_end()).result(CLOSE_TIMEOUT_S)
        self._loop.stop()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)
        if self._calls is not None:
            self._calls.close()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # Triton's objects crash the process if they are freed later
        self._on_close()

    def _take_call(self, call: Call, outlet: Outlet) -> None:
        """Start answering a request of another text model of this server, with tokens."""
        responder = Responder(outlet, unique_number())
        try:
            self._count(responder)
            responder.follow(self._loop.spawn(self._respond(call, responder, _as_they_are)))
        except Exception as error:
            responder.fail(error)

    def _count(self, responder: Responder) -> None:
        self._open.enter()
        responder.at_end(self._open.leave)

    def _outputs_of(self, inputs: Inputs) -> OutputsOf:
        skip = bool(read_scalar(inputs, "skip_special_tokens", bool, True))
        return StreamedOutputs(self._vocabulary, skip_special_tokens=skip).of

    async def _tokenize_and_answer(
        self, inputs: Inputs, header: Header, streaming: bool, responder: Responder, outputs_of: OutputsOf
    ) -> None:
        """Tokenize a long text in the thread pool, then answer it."""
        began_s = time.monotonic()
        work = asyncio.get_running_loop().run_in_executor(self._tokenizing, self._preprocess, inputs)
        try:
            tensors = await within(header.timeout_us / 1e6 or None, work)
        except asyncio.TimeoutError:
            raise RequestTimeoutError(
                "the request's deadline passed before its text was tokenized",
                values=f"timeout={header.timeout_us} microseconds",
                limit="the timeout sent with the request",
                remedy="allow more time, shorten the prompt, or send fewer long prompts concurrently",
            ) from None
        if header.timeout_us:
            spent_us = int(1e6 * (time.monotonic() - began_s))
            header = replace(header, timeout_us=max(1, header.timeout_us - spent_us))
        await self._answer_text(tensors, header, streaming, responder, outputs_of)

    async def _answer_text(
        self, tensors: Tensors, header: Header, streaming: bool, responder: Responder, outputs_of: OutputsOf
    ) -> None:
        tensors = {**tensors, "streaming": scalar_tensor(streaming, np.bool_)}
        call = Call(tensors, header.client_id, header.timeout_us)
        await self._respond(call, responder, outputs_of)

    async def _respond(self, call: Call, responder: Responder, outputs_of: OutputsOf) -> None:
        async with aclosing(self._answer(call)) as responses:
            async for outputs, is_final in responses:
                responder.send(outputs_of(outputs, is_final=is_final), is_final=is_final)


async def _answer_ping(responder: Responder) -> None:
    responder.send({}, is_final=True)


def _as_they_are(outputs: Tensors, *, is_final: bool) -> Tensors:
    return outputs


def load_text_model(parameters: ModelParameters, backend: Any) -> TextModel:
    """Load a text model that gets its tokens from the engine at ``engine_socket``.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """
    socket = parameters.path("engine_socket")
    return TextModel(parameters, backend, lambda call: stream(socket, call))
