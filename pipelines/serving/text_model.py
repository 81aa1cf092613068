"""``generate``, ``generate_target`` and their ``_unary`` twins: text to text.

They tokenize and spell themselves and ask the process of ``speculative`` or ``target`` for the tokens in
between, over its socket. An ensemble would do the same with two hops through Triton more for each chunk
(``docs/decisions/0025-text-models-instead-of-ensembles.md``). The twins give one response, since Triton
refuses KServe's ``infer`` and ``ModelInfer`` on models that may give several
(``docs/decisions/0005-kserve-v2-unary.md``).
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import refuse_unknown_parameters
from pipelines.serving.generation_model import CLOSE_TIMEOUT_S
from pipelines.serving.inputs import Inputs, read_scalar
from pipelines.serving.local_calls import stream
from pipelines.serving.outbox import Outbox
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.preprocessing import Preprocessing
from pipelines.serving.responder import Responder
from pipelines.serving.streamed_outputs import StreamedOutputs
from pipelines.serving.triton_outlet import TritonOutlet
from pipelines.serving.triton_wire import TritonWire, scalar_tensor
from pipelines.text.vocabulary import Vocabulary


class TextModel:
    """Answers Triton's requests.

    Args:
        parameters: ``engine_socket`` leads to the engine.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        self._parameters = parameters
        self._preprocess = Preprocessing(parameters)
        self._vocabulary = Vocabulary.from_file(parameters.path("tokenizer_file"))
        self._socket = parameters.path("engine_socket")
        self._wire = TritonWire(backend)
        self._outbox = Outbox()
        self._numbers = itertools.count(1)
        self._loop = StepLoop(())
        self._loop.start()

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; returns at once, the answers follow."""
        for request in requests:
            client_id = request.request_id()
            request_id = f"{client_id or self._parameters.model_name}/{next(self._numbers)}"
            responder = Responder(TritonOutlet(self._wire, request, self._outbox, request_id), request_id)
            try:
                timeout_us = refuse_unknown_parameters(request.parameters(), self._parameters.input_names)
                inputs = self._wire.inputs(request)
                streaming = self._is_streaming(inputs)
                tensors = {**self._preprocess(inputs), "streaming": scalar_tensor(streaming, np.bool_)}
                timeout_us = request.timeout() or timeout_us
                responder.follow(self._loop.spawn(self._answer(tensors, client_id, timeout_us, responder)))
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what runs and send the last responses."""
        self._loop.stop()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later

    def _is_streaming(self, inputs: Inputs) -> bool:
        streaming = bool(read_scalar(inputs, "stream", bool, False))
        if streaming and not self._parameters.is_decoupled:
            raise InvalidRequestError(
                "this model cannot stream",
                values="stream=true",
                limit="one response per request",
                remedy="use 'generate' or 'generate_target' through generate_stream or gRPC ModelStreamInfer",
            )
        return streaming

    async def _answer(
        self,
        tensors: Mapping[str, npt.NDArray[Any]],
        request_id: str,
        timeout_us: int,
        responder: Responder,
    ) -> None:
        text_outputs = StreamedOutputs(self._vocabulary)
        responses = stream(self._socket, tensors, request_id, timeout_us)
        async with aclosing(responses):  # type: ignore[type-var]
            async for outputs, is_final in responses:
                responder.send(text_outputs.of(outputs, is_final=is_final), is_final=is_final)
