"""A scripted stand-in server with the few Triton endpoints that the client uses, on real sockets.

It refuses what Triton refuses, in Triton's words: unknown models, and unexpected, missing and mistyped
inputs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.wire.fields import OUTPUTS, TEXT_INPUTS

INPUT_TYPES = {name: tensor.datatype for name, tensor in TEXT_INPUTS.items()}
OUTPUT_TYPES = {name: tensor.datatype for name, tensor in OUTPUTS.items()}
NUMPY_TYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
_WAIT_FOR_CANCEL_S = 10.0

Script = Callable[[dict[str, Any], str], Iterator[dict[str, Any]]]
"""(inputs, model) -> responses; raises Refused for an error response."""


class Refused(Exception):
    """Raised with the text of the error response."""


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def response(text: str, ids: list[int], so_far: int, finish: str = "", **counts: Any) -> dict[str, Any]:
    """Return outputs of ``generate_target``, or of ``generate`` if counts are given."""
    outputs = {"text_output": text, "output_ids": ids, "sequence_length": so_far, "finish_reason": finish}
    return {**outputs, **counts}


@dataclass
class StandInServer:
    """A context manager; ``grpc_url`` is valid inside."""

    script: Script
    models: tuple[str, ...] = ("generate", "generate_target")
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    was_cancelled: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> StandInServer:
        self._grpc = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(self), self._grpc)
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self.grpc_url = f"grpc://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._grpc.stop(grace=None).wait()

    def answer(self, inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
        if model not in self.models:
            raise Refused(f"Request for unknown model: '{model}' is not found")
        if not {"text_input", "input_ids"} & set(inputs):
            raise Refused(f"neither text_input nor input_ids for model '{model}'")
        self.requests.append((model, inputs))
        yield from self.script(inputs, model)


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, stand_in: StandInServer) -> None:
        self._stand_in = stand_in

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=True)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def ModelConfig(self, request: Any, context: Any) -> Any:
        if request.name not in self._stand_in.models:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{request.name}'")
        reply = service_pb2.ModelConfigResponse()
        reply.config.parameters["engine_dir"].string_value = "/engines/target"
        return reply

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
        context.add_callback(self._stand_in.was_cancelled.set)
        for request in requests:
            try:
                model = request.model_name
                for outputs in self._stand_in.answer(_grpc_inputs(request), model):
                    if outputs.get("wait"):
                        self._stand_in.was_cancelled.wait(_WAIT_FOR_CANCEL_S)
                        return
                    yield _grpc_response(outputs, is_final=False)
                yield _grpc_response({}, is_final=True)
            except Refused as refused:
                yield service_pb2.ModelStreamInferResponse(error_message=str(refused))


def _grpc_inputs(request: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"timeout": request.parameters["timeout"].int64_param}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.name not in INPUT_TYPES:
            raise Refused(f"unexpected inference input '{tensor.name}' for model '{request.model_name}'")
        if tensor.datatype != INPUT_TYPES[tensor.name]:
            raise Refused(f"inference input '{tensor.name}' data-type is '{tensor.datatype}'")
        if tensor.datatype == "BYTES":
            values: list[Any] = []
            while raw:
                size = int.from_bytes(raw[:4], "little")
                values.append(raw[4 : 4 + size].decode("utf-8"))
                raw = raw[4 + size :]
        else:
            values = np.frombuffer(raw, NUMPY_TYPES[tensor.datatype]).tolist()
        if list(tensor.shape) != [1, len(values)]:
            raise Refused(f"unexpected shape for input '{tensor.name}'")
        inputs[tensor.name] = values if TEXT_INPUTS[tensor.name].is_list else values[0]
    return inputs


def _grpc_response(outputs: dict[str, Any], *, is_final: bool) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.parameters["triton_final_response"].bool_param = is_final
    for name, value in outputs.items():
        values = value if isinstance(value, list) else [value]
        datatype = OUTPUT_TYPES[name]
        shape = [1, 1, len(values)] if name == "output_ids" else [1, len(values)]
        message.infer_response.outputs.add(name=name, datatype=datatype, shape=shape)
        if datatype == "BYTES":
            encoded = [str(item).encode("utf-8") for item in values]
            raw = b"".join(len(item).to_bytes(4, "little") + item for item in encoded)
        else:
            raw = np.array(values, NUMPY_TYPES[datatype]).tobytes()
        message.infer_response.raw_output_contents.append(raw)
    return message
