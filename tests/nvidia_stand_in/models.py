"""The Triton models of the stand-in: a shell around each of its functions.

``pb_utils`` is passed as an argument, so only a running server needs it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.nvidia_stand_in import bls, engine
from tests.nvidia_stand_in.engine import Refused, Tensors
from tests.nvidia_stand_in.language import END_ID, decode, encode

Answer = Callable[[Tensors, int], Tensors]
"""(inputs, number of the kernel) -> outputs."""

_NUM_KERNELS = 8


class Model:
    """One model; ``decoupled`` models answer through a sender."""

    def __init__(self, args: dict[str, str], pb_utils: Any) -> None:
        self._pb = pb_utils
        config = json.loads(args["model_config"])
        self._is_decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        fault = config.get("parameters", {}).get("fault", {}).get("string_value", "")
        name = config["name"]
        answers: dict[str, Answer] = {
            "preprocessing": lambda inputs, kernel: _preprocess(inputs),
            "postprocessing": lambda inputs, kernel: _postprocess(inputs),
            "tensorrt_llm": lambda inputs, kernel: self._engine(inputs, kernel, is_draft=False),
            "tensorrt_llm_draft": lambda inputs, kernel: self._engine(inputs, kernel, is_draft=True),
            "tensorrt_llm_bls": lambda inputs, kernel: bls.answer(inputs, self._call, fault),
        }
        self._answer = answers[name]
        self._kernels = itertools.cycle(range(_NUM_KERNELS))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        # Another kernel for every batch, so that the noise does not depend on how busy the machine is.
        kernel = next(self._kernels)
        responses = [self._response(request, kernel) for request in requests]
        if not self._is_decoupled:
            return responses
        for request, response in zip(requests, responses, strict=True):
            sender = request.get_response_sender()
            sender.send(response)
            sender.send(flags=self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _response(self, request: Any, kernel: int) -> Any:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        try:
            outputs = self._answer(inputs, kernel)
        except Refused as refused:
            return self._pb.InferenceResponse(error=self._pb.TritonError(str(refused)))
        wanted = request.requested_output_names()
        tensors = [self._pb.Tensor(name, array) for name, array in outputs.items() if name in wanted]
        return self._pb.InferenceResponse(output_tensors=tensors)

    def _engine(self, inputs: Tensors, kernel: int, *, is_draft: bool) -> Tensors:
        return engine.answer(inputs, kernel, is_draft=is_draft, is_decoupled=self._is_decoupled)

    def _call(self, model: str, inputs: Tensors, wanted: list[str]) -> Tensors:
        request = self._pb.InferenceRequest(
            model_name=model,
            inputs=[self._pb.Tensor(name, array) for name, array in inputs.items()],
            requested_output_names=wanted,
        )
        response = request.exec()
        if response.has_error():
            raise Refused(response.error().message())
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def _preprocess(inputs: Tensors) -> Tensors:
    ids = encode(inputs["QUERY"].ravel()[0].decode())
    return {
        "INPUT_ID": np.array([ids], np.int32),
        "REQUEST_INPUT_LEN": np.array([[len(ids)]], np.int32),
        "REQUEST_OUTPUT_LEN": inputs["REQUEST_OUTPUT_LEN"].astype(np.int32),
        "OUT_END_ID": np.array([[END_ID]], np.int32),
    }


def _postprocess(inputs: Tensors) -> Tensors:
    length = int(inputs["SEQUENCE_LENGTH"].ravel()[0])
    text = decode([int(token) for token in inputs["TOKENS_BATCH"].ravel()[:length]])
    return {"OUTPUT": np.array([[text.encode()]], np.object_)}
