"""Transport over gRPC (KServe v2), with one ``ModelStreamInfer`` call per request.

Generating models are decoupled, and Triton serves those over gRPC only through a stream, whether the answer
is streamed or not. The transport uses tritonclient's generated messages, but neither of its clients: the
synchronous one allows one stream at a time and leaks a thread for each cancelled one, and the asyncio one
cannot ask for the marked last response.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import triton_to_np_dtype

from pipelines.client.connection import KEY_HEADER, NOTICES_DEATH, Timeouts
from pipelines.client.generation import chunk_from_outputs
from pipelines.client.inputs import inputs_of
from pipelines.client.refusals import cancelled, refusal, timed_out, unreachable
from pipelines.errors import DraftproofError
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest


class GrpcTransport:
    """A channel to one server, for any number of concurrent calls.

    Args:
        address: ``host:port``.
        timeouts: Timeouts of every call.
        key: Key of the server, for operators.
    """

    def __init__(self, address: str, timeouts: Timeouts, key: str = "") -> None:
        self._address = address
        self._timeouts = timeouts
        self._metadata = ((KEY_HEADER, key),) if key else None
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                # gRPC uses this as the timeout of one attempt to connect.
                ("grpc.min_reconnect_backoff_ms", int(timeouts.connect_s * 1000)),
                # The default backoff of up to 20 s would delay clients that poll a starting server.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                *NOTICES_DEATH,
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def start(self, request: CompletionRequest, model: str, *, streaming: bool) -> GrpcCall:
        """Send a request.

        Raises:
            InvalidRequestError: The request cannot be sent.
        """
        message = infer_message(request, model, self._timeouts, streaming=streaming)
        call = self._stub.ModelStreamInfer(
            iter((message,)), timeout=self._timeouts.total_s, metadata=self._metadata
        )
        silence_s = self._timeouts.read_s if streaming else self._timeouts.total_s
        return GrpcCall(call, self._address, silence_s, self._timeouts)

    def is_ready(self) -> bool:
        """Return whether the server is ready; False if nothing answers."""
        try:
            return bool(
                self._stub.ServerReady(
                    service_pb2.ServerReadyRequest(), timeout=self._timeouts.connect_s
                ).ready
            )
        except grpc.RpcError:
            return False

    def server_version(self) -> str:
        """Return the version of Triton."""
        reply = self._ask(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        return str(reply.version)

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """Return the ``parameters`` of a model's config.pbtxt."""
        reply = self._ask(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model))
        return {name: str(value.string_value) for name, value in reply.config.parameters.items()}

    def close(self) -> None:
        """Close the channel, which cancels open calls."""
        self._channel.close()

    def _ask(self, method: Any, message: Any) -> Any:
        try:
            return method(message, timeout=self._timeouts.read_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise as_error(error, self._address, self._timeouts) from error


class GrpcCall:
    """One call. A thread receives its responses, so that arrival times do not depend on the caller.

    Args:
        call: Call object of the stub.
        address: Address of the server, for messages.
        silence_s: Longest time to wait for a response after the first one, which has the whole time; None
            for any.
        timeouts: Timeouts, for messages.
    """

    def __init__(self, call: Any, address: str, silence_s: float | None, timeouts: Timeouts) -> None:
        self._call = call
        self._address = address
        self._silence_s = silence_s
        self._limit_s = timeouts.total_s
        self._timeouts = timeouts
        self._arrivals: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()
        self._is_finished = False
        threading.Thread(target=self._receive_all, name="draftproof-client", daemon=True).start()

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None after the last.

        Raises:
            DraftproofError: The server raised it, or the call broke.
        """
        while not self._is_finished:
            try:
                received_at_s, arrival = self._arrivals.get(timeout=self._limit_s)
            except queue.Empty:
                raise timed_out("no response", self._limit_s) from None
            self._limit_s = self._silence_s
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
                return chunk_from_outputs(outputs_of(response), received_at_s)
        return None

    def close(self) -> None:
        """Cancel the call unless its answer is complete or failed.

        Triton 2.51 may never release a call that is cancelled while it ends (its pull request 8078), nor the
        model: the server then waits for its exit timeout and ends with an error.
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


def infer_message(request: CompletionRequest, model: str, timeouts: Timeouts, *, streaming: bool) -> Any:
    """Build the ``ModelInferRequest`` for a model.

    Raises:
        InvalidRequestError: The request cannot be sent.
    """
    message = service_pb2.ModelInferRequest(model_name=model)
    # Request the marked last response even if it is empty; without it, an end without tensors would
    # never arrive.
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters["timeout"].int64_param = timeouts.total_us
    for each in inputs_of(request, streaming=streaming):
        message.inputs.add(name=each.name, datatype=each.datatype, shape=[1, len(each.values)])
        message.raw_input_contents.append(raw_contents(each.datatype, each.values))
    return message


def raw_contents(datatype: str, values: Sequence[Any] | npt.NDArray[Any]) -> bytes:
    """Encode the values of a tensor, flattened; the inverse of ``tensor_values``."""
    if datatype == "BYTES":
        encoded = [str(value).encode("utf-8") for value in values]
        return b"".join(len(item).to_bytes(4, "little") + item for item in encoded)
    return np.asarray(values, triton_to_np_dtype(datatype)).tobytes()


def outputs_of(response: Any) -> dict[str, list[Any]]:
    """Return the values of each tensor of a ``ModelInferResponse``, flattened."""
    # tritonclient's InferResult does the same in three times the time; this runs for every chunk of a stream.
    return {
        output.name: tensor_values(output.datatype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def tensor_values(datatype: str, raw: bytes) -> list[Any]:
    """Decode the raw values of a tensor, flattened; text as ``bytes``."""
    if datatype != "BYTES":
        values: list[Any] = np.frombuffer(raw, triton_to_np_dtype(datatype)).tolist()
        return values
    items, start = [], 0
    while start < len(raw):
        stop = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        items.append(raw[start + 4 : stop])
        start = stop
    return items


def as_error(error: Any, address: str, timeouts: Timeouts) -> DraftproofError:
    """Convert an error of gRPC to one of ours."""
    status, detail = error.code(), error.details() or ""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out("the deadline passed", timeouts.total_s)
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(address, detail)
    if status is grpc.StatusCode.CANCELLED:
        return cancelled(detail)
    faults = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE)
    return refusal(detail, is_client_fault=status in faults)
