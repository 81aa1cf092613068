"""Answers a call for one response from a model that may send several.

The text models are decoupled, so that they can stream. Triton 2.51 refuses KServe's ``infer`` and
``ModelInfer`` on such models, whatever is asked
(``docs/decisions/request-path.md``).
"""

from __future__ import annotations

from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.messages import grpc_messages
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import Triton, error_behind

_FINAL = "triton_final_response"  # Triton's mark in streams, which calls for one response do not have


async def one_response(triton: Triton, calls: OpenCalls, message: Any, raw: bytes) -> Any:
    """Send a request to Triton and return its only response, a ``ModelInferResponse``.

    Args:
        triton: Connections to Triton.
        calls: Tracks open requests.
        message: The ``ModelInferRequest``.
        raw: The same for Triton.

    Raises:
        DraftproofError: The request asks for chunks, the model's own error, or the model sent more or less
            than one response.
        grpc.aio.AioRpcError: Triton has ended.
    """
    if grpc_messages.asks_to_stream(message):
        raise _not_one("stream is true")
    num_responses = 0
    first: Any = None  # others are only counted
    async for arrival in triton.responses(raw):
        if arrival.error_message:
            raise error_behind(arrival.error_message)
        calls.hear(message.model_name)
        if arrival.infer_response.outputs:
            num_responses += 1
            first = first or arrival.infer_response
    if first is None or num_responses > 1:
        raise _not_one(f"the model sent {num_responses}")
    first.parameters.pop(_FINAL, None)
    return first


def _not_one(values: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the call needs exactly one response",
        values=values,
        limit="one response",
        remedy="leave out stream=true; generate_stream and ModelStreamInfer send chunks",
    )
