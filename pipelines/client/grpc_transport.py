"""KServe v2 over gRPC: one ``ModelStreamInfer`` call per request, whether the answer is streamed or not.

All models of the repository that generate are decoupled, and Triton serves those over gRPC only through
a stream. Uses the messages that tritonclient generates from NVIDIA's protocol, not its client: that one
allows a single stream at a time and leaves a thread behind for each cancelled one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.client.generation import Chunk, chunk_from_outputs
from pipelines.client.refusals import cancelled, refusal, timed_out, unreachable
from pipelines.client.request import CompletionRequest, InputTensor
from pipelines.client.timeouts import Timeouts
from pipelines.errors import DraftproofError

_NUMPY_TYPES: Mapping[str, type[np.generic]] = {
    "INT32": np.int32,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "BOOL": np.bool_,
}


class GrpcTransport:
    """A channel to one server; any number of calls may be open at once.

    Args:
        address: ``host:port``.
        timeouts: Limits of every call.
    """

    def __init__(self, address: str, timeouts: Timeouts) -> None:
        self._address = address
        self._timeouts = timeouts
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                # gRPC's name for how long one attempt to connect may take.
                ("grpc.min_reconnect_backoff_ms", int(timeouts.connect_s * 1000)),
                # Who polls a starting server must not be told for 20 s what was true before.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def start(self, request: CompletionRequest, model: str, *, streaming: bool) -> GrpcCall:
        """Send a request.

        Raises:
            InvalidRequestError: It cannot be sent.
        """
        message = service_pb2.ModelInferRequest(model_name=model)
        # Asks for the marked last response even where it is empty: without it, an end that carries no
        # tensors would never be heard of.
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        message.parameters["timeout"].int64_param = self._timeouts.total_us
        for tensor in request.tensors(streaming=streaming):
            message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=[1, len(tensor.values)])
            message.raw_input_contents.append(_raw(tensor))
        call = self._stub.ModelStreamInfer(iter((message,)), timeout=self._timeouts.total_s)
        silence_s = self._timeouts.read_s if streaming else self._timeouts.total_s
        return GrpcCall(call, self._address, silence_s, self._timeouts)

    def is_ready(self) -> bool:
        """Whether the server says that it is ready; False if nothing answers."""
        try:
            return bool(
                self._stub.ServerReady(
                    service_pb2.ServerReadyRequest(), timeout=self._timeouts.connect_s
                ).ready
            )
        except grpc.RpcError:
            return False

    def server_version(self) -> str:
        """Triton's version."""
        reply = self._ask(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        return str(reply.version)

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """The ``parameters`` of a model's config.pbtxt."""
        reply = self._ask(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model))
        return {name: str(value.string_value) for name, value in reply.config.parameters.items()}

    def close(self) -> None:
        """Close the channel; calls still open on it are cancelled."""
        self._channel.close()

    def _ask(self, method: Any, message: Any) -> Any:
        try:
            return method(message, timeout=self._timeouts.read_s)
        except grpc.RpcError as error:
            raise as_error(error, self._address, self._timeouts) from error


class GrpcCall:
    """One call. A thread of its own receives, so that arrival times are true even if nobody asks yet.

    Args:
        call: What the stub returned.
        address: For messages.
        silence_s: Longest wait for one response.
        timeouts: For messages.
    """

    def __init__(self, call: Any, address: str, silence_s: float, timeouts: Timeouts) -> None:
        self._call = call
        self._address = address
        self._silence_s = silence_s
        self._timeouts = timeouts
        self._arrivals: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()
        self._is_finished = False
        threading.Thread(target=self._receive_all, name="draftproof-client", daemon=True).start()

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None after the last.

        Raises:
            DraftproofError: As the server raised it, or the call broke.
        """
        while not self._is_finished:
            try:
                received_at_s, arrival = self._arrivals.get(timeout=self._silence_s)
            except queue.Empty:
                raise timed_out("no response", self._silence_s) from None
            if isinstance(arrival, grpc.RpcError):
                raise as_error(arrival, self._address, self._timeouts) from arrival
            if arrival is None:
                raise unreachable(self._address, "the stream ended before the last response")
            if arrival.error_message:
                self._is_finished = True  # it is the last response
                raise refusal(arrival.error_message)
            response = arrival.infer_response
            self._is_finished = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                return chunk_from_outputs(_outputs(response), received_at_s)
        return None

    def close(self) -> None:
        """Cancel what is not yet answered; a complete answer, or an error, ends its call by itself.

        A call that is cancelled while it ends may never be let go by Triton 2.51 (its pull request 8078), nor
        the model with it: the server then waits for its exit timeout and ends with an error.
        """
        if not self._is_finished:
            self._is_finished = True
            self._call.cancel()

    def _receive_all(self) -> None:
        try:
            for response in self._call:
                self._arrivals.put((time.monotonic(), response))
        except grpc.RpcError as error:
            self._arrivals.put((time.monotonic(), error))
        else:
            self._arrivals.put((time.monotonic(), None))


def _raw(tensor: InputTensor) -> bytes:
    if tensor.datatype == "BYTES":
        encoded = [str(value).encode("utf-8") for value in tensor.values]
        return b"".join(len(item).to_bytes(4, "little") + item for item in encoded)
    return np.array(tensor.values, dtype=_NUMPY_TYPES[tensor.datatype]).tobytes()


def _outputs(response: Any) -> dict[str, list[Any]]:
    # tritonclient's InferResult does the same in three times the time; this runs for every chunk of a stream.
    return {
        output.name: tensor_values(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def tensor_values(datatype: str, raw: bytes) -> list[Any]:
    """Values of a tensor as gRPC carries it, flattened; text as ``bytes``."""
    if datatype != "BYTES":
        values: list[Any] = np.frombuffer(raw, _NUMPY_TYPES[datatype]).tolist()
        return values
    items, start = [], 0
    while start < len(raw):
        stop = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        items.append(raw[start + 4 : stop])
        start = stop
    return items


def as_error(error: Any, address: str, timeouts: Timeouts) -> DraftproofError:
    """The error of ours for one of gRPC's."""
    status, detail = error.code(), error.details() or ""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out("its deadline passed", timeouts.total_s)
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(address, detail)
    if status is grpc.StatusCode.CANCELLED:
        return cancelled(detail)
    faults = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE)
    return refusal(detail, is_client_fault=status in faults)
