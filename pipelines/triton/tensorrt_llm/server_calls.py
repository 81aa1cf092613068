"""Calls other models of the same server over its gRPC port: streamed, cancellable, with a deadline.

This replaces BLS for models that are not ours. ``wire.calls`` explains why BLS cannot be used; sockets
need our code on the other side, which NVIDIA's C++ models do not have.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerBusyError,
    from_wire,
)

ADDRESS_VARIABLE = "DRAFTPROOF_GRPC_ADDRESS"
"""Environment variable with the server's own gRPC address for its models."""

DEFAULT_ADDRESS = "127.0.0.1:8001"  # Triton's default port

Tensors = Mapping[str, npt.NDArray[Any]]

_UNLIMITED = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
# Source locations in TensorRT-LLM's assertion messages, which are of no use to a client.
_WHERE_IN_THE_SOURCE = re.compile(r" ?\((?:/[^()]*|[^()]*\.(?:cpp|h|cc|cu)):\d+\)")
_LONGEST_QUOTE = 300
_READ_LOG = "read the server's log"
# A request that the executor takes from its queue and cannot run (fetchNewRequests in executorImpl.cpp
# @b35ac1b6), and one that fails a check before that (ModelInstanceState::enqueue in model_instance_state.cc
# @0c8de69a). An engine that fails says "Encountered an error in forwardAsync function" to all its requests.
_REFUSED = re.compile(
    r"Encountered an error when fetching new request|\A\[TensorRT-LLM\]\[ERROR\] Assertion failed"
)


class ServerCalls:
    """A channel to the server that this process belongs to. Used on one event loop.

    Args:
        address: ``host:port``; None to read ``ADDRESS_VARIABLE``.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address or os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS)
        self._stub: Any = None  # bound to the event loop that is running when it is created

    async def stream(
        self,
        model_name: str,
        tensors: Tensors,
        output_names: Iterable[str],
        *,
        request_id: str,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[dict[str, npt.NDArray[Any]], None]:
        """Send a request to a model and stream its responses.

        Closing the generator cancels the request: Triton marks it as cancelled, and the C++ backend ends it
        at its next check (``cancellation_check_period_ms``).

        Args:
            model_name: Name of the model.
            tensors: Inputs with a batch dimension of 1.
            output_names: Outputs to return.
            request_id: Unique among the open calls.
            deadline_s: Deadline on the clock of ``time.monotonic``; None for none.

        Yields:
            The outputs of each response that has any.

        Raises:
            RequestTimeoutError: The deadline passed.
            ServerBusyError: The model's queue is full.
            RequestRefusedError: The model refused this request.
            EngineFailedError: The model failed, or the server does not answer.
        """
        import grpc  # type: ignore[import-untyped]

        call = self._open(model_name, tensors, output_names, request_id, _remaining_s(request_id, deadline_s))
        is_complete = False
        try:
            # Keep reading after the last response: a complete call ends by itself and is not cancelled.
            async for arrival in call:
                if arrival.error_message:
                    raise model_error(model_name, arrival.error_message)
                response = arrival.infer_response
                if response.outputs:
                    yield _arrays(response)
                is_complete |= response.parameters["triton_final_response"].bool_param
        except grpc.aio.AioRpcError as error:
            raise _call_error(error, self._address, request_id) from None
        finally:
            call.cancel()
        if not is_complete:
            raise EngineFailedError(
                f"model '{model_name}' ended its answer to request {request_id} without a last response",
                _READ_LOG,
            )

    async def whole(
        self,
        model_name: str,
        tensors: Tensors,
        output_names: Iterable[str],
        *,
        request_id: str,
        deadline_s: float | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Send a request with a single response; arguments and errors as for ``stream``."""
        last: dict[str, npt.NDArray[Any]] = {}
        responses = self.stream(
            model_name, tensors, output_names, request_id=request_id, deadline_s=deadline_s
        )
        async with aclosing(responses):
            async for outputs in responses:
                last = outputs
        if not last:
            raise EngineFailedError(f"model '{model_name}' gave no answer to request {request_id}", _READ_LOG)
        return last

    def _open(
        self,
        model_name: str,
        tensors: Tensors,
        output_names: Iterable[str],
        request_id: str,
        timeout_s: float | None,
    ) -> Any:
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc
        from tritonclient.utils import np_to_triton_dtype

        if self._stub is None:
            channel = grpc.aio.insecure_channel(self._address, options=_UNLIMITED)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, array in tensors.items():
            message.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        for name in output_names:
            message.outputs.add(name=name)
        return self._stub.ModelStreamInfer(iter((message,)), timeout=timeout_s)


def model_error(model_name: str, message: str) -> DraftproofError:
    """Convert a model's error message: only its first line, without source locations."""
    ours = from_wire(message)
    if ours is not None:
        return ours
    said = _WHERE_IN_THE_SOURCE.sub("", message.strip().partition("\n")[0])[:_LONGEST_QUOTE]
    if "Maximum queue size" in message or "Exceeds maximum queue size" in message:  # the executor's; Triton's
        return ServerBusyError(
            f"the queue of model '{model_name}' is full: {said}",
            "send the request again later, or serve with a larger max_queue_size",
        )
    if _REFUSED.search(message):
        return RequestRefusedError(
            f"model '{model_name}' refused the request: {said}",
            "read the server's log; compare the engine's config.json with 'draftproof preflight'",
        )
    return EngineFailedError(f"model '{model_name}' failed: {said}", _READ_LOG)


def _arrays(response: Any) -> dict[str, npt.NDArray[Any]]:
    from tritonclient.utils import triton_to_np_dtype

    return {
        output.name: np.frombuffer(raw, triton_to_np_dtype(output.datatype)).reshape(tuple(output.shape))
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _remaining_s(request_id: str, deadline_s: float | None) -> float | None:
    if deadline_s is None:
        return None
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise _too_late(request_id)
    return remaining_s


def _call_error(error: Any, address: str, request_id: str) -> DraftproofError:
    import grpc

    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _too_late(request_id)
    return EngineFailedError(
        f"the server does not answer its own models: {address}: {error.code().name}: "
        f"{str(error.details())[:_LONGEST_QUOTE]}",
        f"start the server with 'draftproof serve', or set {ADDRESS_VARIABLE} to its gRPC address",
    )


def _too_late(request_id: str) -> RequestTimeoutError:
    return RequestTimeoutError(
        f"the deadline of request {request_id} passed", "allow more time, lower max_tokens, or add capacity"
    )
