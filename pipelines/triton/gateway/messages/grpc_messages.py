"""Checks ``ModelInferRequest``, the gRPC message for inference."""

from __future__ import annotations

import math
from typing import Any

from tritonclient.grpc import service_pb2

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.messages.inference_checks import (
    check_id,
    check_input_parameters,
    check_model,
    check_names,
    check_output_parameters,
    check_request_parameters,
    check_shape,
    count_values,
    quoted,
)
from pipelines.triton.gateway.triton import KEY_PARAMETER

# Field of InferTensorContents by datatype.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def parse(raw: bytes) -> Any:
    """Parse a ``ModelInferRequest``.

    Raises:
        InvalidRequestError: The bytes are not such a message.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return service_pb2.ModelInferRequest.FromString(raw)
    except DecodeError:
        raise unreadable(raw) from None


def unreadable(raw: bytes) -> InvalidRequestError:
    """Return the error for bytes that cannot be parsed."""
    return InvalidRequestError(
        "the message cannot be read",
        values=f"{len(raw)} bytes",
        limit="the method's message of KServe's protocol",
        remedy="use tritonclient, or the protocol's own definition",
    )


def read_id(raw: bytes) -> str:
    """Return the id of a request that may be invalid; "" for bytes that cannot be parsed."""
    try:
        return str(parse(raw).id)
    except InvalidRequestError:
        return ""


def check(message: Any, server_key: str, *, is_operator: bool) -> bytes:
    """Check a request and return the bytes for Triton.

    Args:
        message: The ``ModelInferRequest``; modified.
        server_key: The key to add for the models.
        is_operator: Whether the client sent the key.

    Raises:
        InvalidRequestError: The request is invalid or not allowed.
    """
    check_model(message.model_name, is_operator=is_operator)
    check_id(message.id)
    check_names("input", [each.name for each in message.inputs])
    check_names("output", [each.name for each in message.outputs])
    check_request_parameters(message.parameters)
    for name, parameter in message.parameters.items():
        _check_finite(name, parameter.double_param)
    for tensor in message.outputs:
        check_output_parameters(tensor.name, tensor.parameters)
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequestError(
            "the contents of the inputs are incomplete",
            values=f"{len(message.inputs)} inputs, {len(raw)} raw_input_contents",
            limit="one for each input, or none",
            remedy="send the contents of all inputs in the same way",
        )
    for number, tensor in enumerate(message.inputs):
        check_input_parameters(tensor.name, tensor.parameters)
        if raw:
            num_values = count_values(tensor.name, tensor.datatype, raw[number])
        else:
            num_values = len(getattr(tensor.contents, _contents_field(tensor)))
        check_shape(tensor.name, tensor.shape, num_values)
    message.parameters[KEY_PARAMETER].string_param = server_key
    data: bytes = message.SerializeToString()
    return data


def asks_to_stream(message: Any) -> bool:
    """Whether the input ``stream`` of a checked request is true."""
    for number, tensor in enumerate(message.inputs):
        if tensor.name == "stream":
            raw = message.raw_input_contents
            return any(raw[number] if raw else tensor.contents.bool_contents)
    return False


def _check_finite(name: str, number: float) -> None:
    """Refuse numbers that JSON cannot represent: Triton passes parameters to models as JSON."""
    if not math.isfinite(number):
        raise InvalidRequestError(
            "a parameter of the request is not finite",
            values=f"{quoted(name)}: {number}",
            limit="finite numbers",
            remedy="leave it out",
        )


def _contents_field(tensor: Any) -> str:
    if tensor.datatype not in _CONTENTS:
        raise InvalidRequestError(
            f"the contents of {quoted(tensor.name)} cannot be used",
            values=f"datatype {quoted(tensor.datatype)} without raw_input_contents",
            limit=", ".join(_CONTENTS),
            remedy="send the tensor in raw_input_contents",
        )
    return _CONTENTS[tensor.datatype]
