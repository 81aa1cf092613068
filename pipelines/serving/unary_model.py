"""``generate_unary`` and ``generate_target_unary``: text to text for clients that want one response.

Triton refuses KServe's ``infer`` (HTTP) and ``ModelInfer`` (gRPC) on models that may give several
responses, as the ensembles do. These models are not of that kind. They prepare and finish the text
themselves and ask the process of ``speculative`` or ``target`` for the tokens in between.
``docs/decisions/0005-kserve-v2-unary.md`` has the alternatives.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy.typing as npt

from pipelines.errors import InvalidRequestError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import refuse_unknown_parameters
from pipelines.serving.generation_model import CLOSE_TIMEOUT_S
from pipelines.serving.inputs import Inputs
from pipelines.serving.local_calls import call
from pipelines.serving.outbox import Outbox
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.postprocessing_model import decode
from pipelines.serving.preprocessing_model import Preprocessing
from pipelines.serving.responder import Responder
from pipelines.serving.sampling_tensors import PASSED_ON
from pipelines.serving.triton_wire import TritonWire, text_tensor
from pipelines.text.vocabulary import Vocabulary


class UnaryModel:
    """Answers each request with one response.

    Args:
        parameters: ``engine_socket`` leads to the engine.
        backend: The module ``triton_python_backend_utils``.
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
            request_id = f"{request.request_id() or 'unary'}/{next(self._numbers)}"
            responder = Responder(self._wire, request, self._outbox, request_id)
            try:
                timeout_us = refuse_unknown_parameters(request.parameters(), self._parameters.input_names)
                tensors = self._engine_tensors(self._wire.inputs(request))
                work = self._answer(tensors, request_id, request.timeout() or timeout_us, responder)
                responder.follow(self._loop.spawn(work))
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what runs and send the last responses."""
        self._loop.stop()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later

    def _engine_tensors(self, inputs: Inputs) -> dict[str, npt.NDArray[Any]]:
        if "stream" in inputs and inputs["stream"].any():
            raise InvalidRequestError(
                "this model cannot stream",
                values="stream=true",
                limit="one response per request",
                remedy="use 'generate' or 'generate_target' through generate_stream or gRPC ModelStreamInfer",
            )
        passed_on = {inner: inputs[outer] for outer, inner in PASSED_ON.items() if outer in inputs}
        return {**self._preprocess(inputs), **passed_on}

    async def _answer(
        self, tensors: dict[str, npt.NDArray[Any]], request_id: str, timeout_us: int, responder: Responder
    ) -> None:
        outputs = await call(self._socket, tensors, request_id, timeout_us)
        outputs["text_output"] = text_tensor(decode(outputs, self._vocabulary))
        responder.send(outputs, is_final=True)
