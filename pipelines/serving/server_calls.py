"""Calls to other models of the same server over its own gRPC port: streamed, cancellable, with a deadline.

Stands in for BLS where the other model is not ours. ``local_calls`` says why BLS is none for decoupled
models, and needs code of ours on the other side, which NVIDIA's C++ models have not.
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
    RequestTimeoutError,
    ServerBusyError,
    from_wire,
)

ADDRESS_VARIABLE = "DRAFTPROOF_GRPC_ADDRESS"
"""Environment variable of the server: where its own gRPC port is reached from its models."""

DEFAULT_ADDRESS = "127.0.0.1:8001"  # Triton's default port

Tensors = Mapping[str, npt.NDArray[Any]]

_TYPES: dict[str, str] = {
    "int32": "INT32",
    "uint64": "UINT64",
    "float16": "FP16",
    "float32": "FP32",
    "bool": "BOOL",
}
_DTYPES = {triton: np.dtype(name) for name, triton in _TYPES.items()}
_UNLIMITED = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
# Sources and addresses in the words of TensorRT-LLM's assertions, which tell a client nothing.
_WHERE_IN_THE_SOURCE = re.compile(r" ?\((?:/[^()]*|[^()]*\.(?:cpp|h|cc|cu)):\d+\)")
_LONGEST_QUOTE = 300


class ServerCalls:
    """A channel to the server that this process belongs to; used on one event loop.

    Args:
        address: ``host:port``; None for that of ``ADDRESS_VARIABLE``.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address or os.environ.get(ADDRESS_VARIABLE, DEFAULT_ADDRESS)
        self._stub: Any = None  # belongs to the loop that runs when it is made

    async def stream(
        self,
        model_name: str,
        tensors: Tensors,
        output_names: Iterable[str],
        *,
        request_id: str,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[dict[str, npt.NDArray[Any]], None]:
        """Ask a model, and give its responses as they come.

        Leaving the generator cancels what is not answered yet: Triton marks the request as cancelled, and
        the C++ backend ends it at its next look (``cancellation_check_period_ms``).

        Args:
            model_name: Which model.
            tensors: Inputs with their batch dimension of 1.
            output_names: Outputs to send.
            request_id: Must differ from that of every other open call.
            deadline_s: On ``time.monotonic``'s clock; None for none.

        Yields:
            Outputs of each response that has any.

        Raises:
            RequestTimeoutError: The deadline passed.
            ServerBusyError: The model's queue is full.
            EngineFailedError: The model refused or failed, or the server does not answer.
        """
        import grpc  # type: ignore[import-untyped]

        call = self._open(model_name, tensors, output_names, request_id, _remaining_s(request_id, deadline_s))
        is_complete = False
        try:
            # Read on after the last response: a complete call ends by itself and is not cancelled.
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
                f"model '{model_name}' ended its answer without a last response",
                values=f"request {request_id}",
                limit="every answer has one",
                remedy="read the server's log",
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
        """Ask a model for an answer of one response; arguments and errors as for ``stream``."""
        last: dict[str, npt.NDArray[Any]] = {}
        responses = self.stream(
            model_name, tensors, output_names, request_id=request_id, deadline_s=deadline_s
        )
        async with aclosing(responses):
            async for outputs in responses:
                last = outputs
        if not last:
            raise EngineFailedError(
                f"model '{model_name}' gave no answer",
                values=f"request {request_id}",
                limit="one response with outputs",
                remedy="read the server's log",
            )
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

        if self._stub is None:
            channel = grpc.aio.insecure_channel(self._address, options=_UNLIMITED)
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, array in tensors.items():
            message.inputs.add(name=name, datatype=_TYPES[array.dtype.name], shape=array.shape)
            message.raw_input_contents.append(array.tobytes())
        for name in output_names:
            message.outputs.add(name=name)
        return self._stub.ModelStreamInfer(iter((message,)), timeout=timeout_s)


def model_error(model_name: str, message: str) -> DraftproofError:
    """The error of ours for what a model answered; only its first line, and no place in NVIDIA's sources."""
    ours = from_wire(message)
    if ours is not None:
        return ours
    said = _WHERE_IN_THE_SOURCE.sub("", message.strip().partition("\n")[0])[:_LONGEST_QUOTE]
    if "Maximum queue size" in message or "Exceeds maximum queue size" in message:  # the executor's; Triton's
        return ServerBusyError(
            f"the queue of model '{model_name}' is full",
            values=said,
            limit="max_queue_size of its config.pbtxt",
            remedy="send the request again later, or serve with a larger max_queue_size",
        )
    return EngineFailedError(
        f"model '{model_name}' refused or failed the request",
        values=said,
        limit="no further detail is passed on",
        remedy="read the server's log",
    )


def _arrays(response: Any) -> dict[str, npt.NDArray[Any]]:
    return {
        output.name: np.frombuffer(raw, _DTYPES[output.datatype]).reshape(tuple(output.shape))
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
        "the server does not answer its own models",
        values=f"{address}: {error.code().name}: {str(error.details())[:_LONGEST_QUOTE]}",
        limit=f"{ADDRESS_VARIABLE} names its gRPC port, {DEFAULT_ADDRESS} if it is not set",
        remedy="start the server with 'make serve', which sets it, or set it where the server is started",
    )


def _too_late(request_id: str) -> RequestTimeoutError:
    return RequestTimeoutError(
        "the request's deadline passed",
        values=f"request {request_id}",
        limit="the timeout sent with the request",
        remedy="allow more time, lower max_tokens, or add capacity",
    )
