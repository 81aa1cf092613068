"""``generate``, ``generate_target``, ``router`` and their ``_unary`` twins: text to text.

They tokenize and spell themselves and ask the process of ``speculative`` or ``target`` for the tokens in
between, over its socket. An ensemble would do the same with two hops through Triton more for each chunk
(``docs/decisions/0025-text-models-instead-of-ensembles.md``). The twins give one response, since Triton
refuses KServe's ``infer`` and ``ModelInfer`` on models that may give several
(``docs/decisions/0005-kserve-v2-unary.md``).
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

import numpy as np

from pipelines.errors import InvalidRequestError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.call_server import CallServer
from pipelines.serving.contract import refuse_unknown_parameters
from pipelines.serving.generation_model import CLOSE_TIMEOUT_S
from pipelines.serving.inputs import Inputs, read_scalar
from pipelines.serving.local_calls import Call, Tensors, stream
from pipelines.serving.outbox import Outbox
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.preprocessing import Preprocessing
from pipelines.serving.responder import Outlet, Responder
from pipelines.serving.streamed_outputs import StreamedOutputs
from pipelines.serving.triton_outlet import TritonOutlet
from pipelines.serving.triton_wire import TritonWire, scalar_tensor
from pipelines.text.vocabulary import Vocabulary

Responses = AsyncGenerator[tuple[Tensors, bool], None]
"""Tensors of each response of an engine, and whether it is the last."""


class OutputsOf(Protocol):
    """From the tensors of an engine's response to those of an answer to it."""

    def __call__(self, outputs: Tensors, *, is_final: bool) -> Tensors:
        """Of the next response."""


class TextModel:
    """Answers Triton's requests.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.
        answer: Gives the tokens.
        on_end: Run on the loop that runs ``answer`` before what still runs there is cancelled.
        on_close: Called at the end.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
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
        self._preprocess = Preprocessing(parameters)
        self._vocabulary = Vocabulary.from_file(parameters.path("tokenizer_file"))
        self._wire = TritonWire(backend)
        self._answer = answer
        self._on_end = on_end
        self._on_close = on_close
        self._outbox = Outbox()
        self._numbers = itertools.count(1)
        self._loop = StepLoop(())
        self._loop.start()
        self._calls = None
        if "socket" in parameters.values:
            self._calls = CallServer(parameters.path("socket"), self._take_call)

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; returns at once, the answers follow."""
        for request in requests:
            client_id = request.request_id()
            request_id = f"{client_id or self._parameters.model_name}/{next(self._numbers)}"
            responder = Responder(TritonOutlet(self._wire, request, self._outbox, request_id), request_id)
            try:
                timeout_us = refuse_unknown_parameters(request.parameters(), self._parameters.input_names)
                inputs = self._wire.inputs(request)
                streaming = scalar_tensor(self._is_streaming(inputs), np.bool_)
                tensors = {**self._preprocess(inputs), "streaming": streaming}
                call = Call(tensors, client_id, request.timeout() or timeout_us)
                outputs_of = StreamedOutputs(self._vocabulary).of
                responder.follow(self._loop.spawn(self._respond(call, responder, outputs_of)))
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what runs and send the last responses."""
        if self._on_end is not None:
            self._loop.spawn(self._on_end()).result(CLOSE_TIMEOUT_S)
        self._loop.stop()
        if self._calls is not None:
            self._calls.close()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later
        self._on_close()

    def _is_streaming(self, inputs: Inputs) -> bool:
        streaming = bool(read_scalar(inputs, "stream", bool, False))
        if streaming and not self._parameters.is_decoupled:
            raise InvalidRequestError(
                "this model cannot stream",
                values="stream=true",
                limit="one response per request",
                remedy="use its namesake without '_unary' through generate_stream or gRPC ModelStreamInfer",
            )
        return streaming

    def _take_call(self, call: Call, outlet: Outlet) -> None:
        """Answer another text model of this server, with tokens (``call_server.Begin``)."""
        responder = Responder(outlet, f"{call.request_id}/{next(self._numbers)}")
        try:
            responder.follow(self._loop.spawn(self._respond(call, responder, _as_they_are)))
        except Exception as error:
            responder.fail(error)

    async def _respond(self, call: Call, responder: Responder, outputs_of: OutputsOf) -> None:
        async with aclosing(self._answer(call)) as responses:
            async for outputs, is_final in responses:
                responder.send(outputs_of(outputs, is_final=is_final), is_final=is_final)


def _as_they_are(outputs: Tensors, *, is_final: bool) -> Tensors:
    return outputs


def load_text_model(parameters: ModelParameters, backend: Any) -> TextModel:
    """A model whose parameter ``engine_socket`` leads to its one engine.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """
    socket = parameters.path("engine_socket")
    return TextModel(parameters, backend, lambda call: stream(socket, call))
