"""A Triton behind the gateway on a real socket: it checks its key, answers as told, and records requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

DATATYPES = {"text_input": "BYTES", "max_tokens": "INT32", "stream": "BOOL"}
SECRET_PATH = "/a/path/of/the/machine/target"


class StandInTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers each request with as many responses as its ``max_tokens``.

    Its models are decoupled, so there is no ``ModelInfer``.

    The text asks for more: "hang" leaves the request open, "break" ends the call after the responses, and a
    text with "draftproof/" or "error" is answered as an error with that text. After "slow error" the call
    takes a while to end.

    Attributes:
        described: Models whose configuration or metadata was asked for.
        cancelled: Set when a request was cancelled before its last response.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.cancelled = asyncio.Event()
        self.described: list[str] = []

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for request in requests:
                text, num_responses = self._read(request)
                for number in range(num_responses):
                    response = answer(request, f"{text} {number}")
                    response.parameters["triton_final_response"].bool_param = False  # as Triton marks chunks
                    yield service_pb2.ModelStreamInferResponse(infer_response=response)
                if text == "hang":
                    await asyncio.sleep(60)
                if text == "break":
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                last = service_pb2.ModelStreamInferResponse()
                if "draftproof/" in text or "error" in text:
                    last.error_message = text
                last.infer_response.model_name, last.infer_response.id = request.model_name, request.id
                last.infer_response.parameters["triton_final_response"].bool_param = True
                yield last
                if text == "slow error":
                    await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        self.described.append(request.name)
        reply = service_pb2.ModelConfigResponse()
        reply.config.name, reply.config.max_batch_size = request.name, 4
        for name, datatype in DATATYPES.items():
            reply.config.input.add(
                name=name, data_type=f"TYPE_{datatype.replace('BYTES', 'STRING')}", dims=[1]
            )
        reply.config.parameters["target_engine_dir"].string_value = SECRET_PATH
        return reply

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        self.described.append(request.name)
        reply = service_pb2.ModelMetadataResponse(name=request.name, platform="python")
        for name, datatype in DATATYPES.items():
            reply.inputs.add(name=name, datatype=datatype, shape=[-1, 1])
        return reply

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0", extensions=["logging"])

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        reply = service_pb2.RepositoryIndexResponse()
        reply.models.add(name="router", version="1", state="READY")
        reply.models.add(name="speculative", version="1", state="UNAVAILABLE", reason="unloaded")
        return reply

    def _read(self, request: Any) -> tuple[str, int]:
        self.requests.append(request)
        raw = {each.name: data for each, data in zip(request.inputs, request.raw_input_contents, strict=True)}
        num_responses = int(np.frombuffer(raw["max_tokens"], np.int32)[0]) if "max_tokens" in raw else 1
        return raw["text_input"][4:].decode(), num_responses


class StandInHealth:
    """A replacement for the supervisor, as the front ends see it."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.ready = {"router"}

    async def opened(self, model: str) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def is_ready(self) -> bool:
        return bool(self.ready)

    async def is_model_ready(self, model: str) -> bool:
        return model in self.ready


def answer(request: Any, text: str) -> Any:
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
    data = text.encode()
    response.raw_output_contents.append(len(data).to_bytes(4, "little") + data)
    response.outputs.add(name="output_ids", datatype="INT32", shape=[1, 2])
    response.raw_output_contents.append(np.int32([1, 2]).tobytes())
    return response
