"""Checks ``ModelInferRequest``, the message for inference that Triton gets, whatever the client speaks.

Some requests crash Triton 2.51 or give clients access to its memory: classification of a BYTES output divides
by zero, anyone may register and read shared memory, and wrong sizes are not checked
(docs/security/triton-cves.md). None of these features is needed, so all are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.errors import ForbiddenError, InvalidRequestError
from pipelines.triton.backend.header import OWN_PREFIX
from pipelines.wire.request import MAX_ID_BYTES

PUBLIC_MODELS = frozenset({"generate", "generate_target", "router", "ensemble"})
"""Models for clients. All others work on token ids and are reserved for operators."""

MAX_BODY_BYTES = 2 << 20
"""Maximum size of a request, far above the longest prompt of an engine in text or ids."""

LARGE_BODY_BYTES = 1 << 16
"""Size from which a request is checked on another thread, so that it does not delay other requests."""

MAX_TENSORS = 64
MAX_DIMENSIONS = 8

DTYPE_BYTES = {
    **{"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2},
    **{"INT32": 4, "UINT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8, "FP64": 8},
}
"""Size of a value by KServe's type names; BYTES has none."""

_MAX_NAME_CHARACTERS = 256
_LONGEST_QUOTE = 80

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


def parse(raw: bytes, kind: Any = service_pb2.ModelInferRequest) -> Any:
    """Parse a message of KServe's protocol.

    Raises:
        InvalidRequestError: The bytes are not such a message.
    """
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise InvalidRequestError(
            f"the {len(raw)} bytes of the message cannot be read",
            "use tritonclient, or the definition of KServe's protocol",
        ) from None


def check_request(message: Any, *, is_operator: bool) -> None:
    """Check a ``ModelInferRequest`` of a client.

    Args:
        message: The request.
        is_operator: Whether the client sent the server's key.

    Raises:
        InvalidRequestError: The request is invalid or not allowed.
        ForbiddenError: It names an arm, and the client is no operator.
    """
    check_model(message.model_name, is_operator=is_operator)
    if not is_operator and any(each.name == "arm" for each in message.inputs):
        raise ForbiddenError(
            "only operators may choose the arm: the request has no server's key",
            "leave arm out; operators send <run directory>/key in the header draftproof-key",
        )
    num_bytes = len(message.id.encode())
    if num_bytes > MAX_ID_BYTES or "\0" in message.id:  # at which Triton would cut it
        raise InvalidRequestError(
            f"the request id, of {num_bytes} bytes, has more than {MAX_ID_BYTES} or contains a NUL",
            "send a shorter one, such as a UUID",
        )
    _check_names("inputs", [each.name for each in message.inputs])
    _check_names("outputs", [each.name for each in message.outputs])
    _check_names("parameters", list(message.parameters))
    for name, parameter in message.parameters.items():  # which Triton passes to models as JSON
        if name.startswith(OWN_PREFIX) or not math.isfinite(parameter.double_param):
            raise InvalidRequestError(
                f"the parameter {quoted(name)} begins with {OWN_PREFIX}, or is not finite",
                "send what the model's configuration lists",
            )
    for tensor in message.outputs:
        _check_parameters(f"output {quoted(tensor.name)}", tensor.parameters, "binary_data")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequestError(
            f"the request has {len(message.inputs)} inputs and {len(raw)} raw_input_contents",
            "send the contents of all inputs in the same way",
        )
    for number, tensor in enumerate(message.inputs):
        _check_parameters(f"input {quoted(tensor.name)}", tensor.parameters, "binary_data_size")
        if raw:
            num_values = count_values(tensor.name, tensor.datatype, raw[number])
        else:
            num_values = len(_contents(tensor))
        _check_shape(tensor.name, tensor.shape, num_values)


def asks_to_stream(message: Any) -> bool:
    """Whether the input ``stream`` of a checked request is true."""
    for number, tensor in enumerate(message.inputs):
        if tensor.name == "stream":
            raw = message.raw_input_contents
            return any(raw[number] if raw else tensor.contents.bool_contents)
    return False


def check_model(model: str, *, is_operator: bool) -> None:
    """Refuse a model that clients may not use.

    Raises:
        InvalidRequestError: The model is not public and the request has no server key.
    """
    if model not in PUBLIC_MODELS and not is_operator:
        raise InvalidRequestError(
            f"clients cannot use this model: {quoted(model)}",
            f"use {', '.join(sorted(PUBLIC_MODELS))}; operators send the server's key, <run directory>/key",
        )


def _check_names(kind: str, names: Sequence[str]) -> None:
    """Refuse too many names, duplicates, long ones, and a NUL, at which Triton would cut the name."""
    longest = max(map(len, names), default=0)
    is_usable = len(names) <= MAX_TENSORS and longest <= _MAX_NAME_CHARACTERS
    if not is_usable or len(set(names)) < len(names) or not all(map(str.isprintable, names)):
        raise InvalidRequestError(
            f"the {kind} of the request cannot be used: {len(names)} names, of at most {longest} characters",
            f"send at most {MAX_TENSORS}, each once, with {_MAX_NAME_CHARACTERS} printable characters",
        )


def _check_parameters(of: str, parameters: Iterable[str], allowed: str) -> None:
    """Refuse parameters of a tensor, such as classification and shared memory."""
    if others := sorted(set(parameters) - {allowed}):
        raise InvalidRequestError(
            f"the {of} has the parameters {', '.join(map(quoted, others[:4]))}",
            "leave them out; classification and shared memory are disabled",
        )


def _check_shape(name: str, shape: Sequence[int], num_values: int) -> None:
    """Refuse a shape that does not fit the values."""
    # The upper bound matters if another dimension is 0: the product is then 0, and sizes overflow in Triton
    # and numpy.
    is_odd = len(shape) > MAX_DIMENSIONS or any(not 0 <= size <= MAX_BODY_BYTES for size in shape)
    if is_odd or math.prod(shape) != num_values:
        raise InvalidRequestError(
            f"the shape {list(shape[:MAX_DIMENSIONS])} of {quoted(name)} does not fit {num_values} values",
            f"send at most {MAX_DIMENSIONS} dimensions, whose product is the number of values",
        )


def count_values(name: str, datatype: str, data: bytes | memoryview) -> int:
    """Count the values in a tensor's bytes.

    Args:
        name: Name of the tensor.
        datatype: KServe's type name; BYTES has a length of four bytes, little-endian, before each value.
        data: The bytes received.

    Raises:
        InvalidRequestError: The bytes are not complete values.
    """
    count = position = 0
    if datatype == "BYTES":
        while position < len(data):
            position += 4 + int.from_bytes(data[position : position + 4], "little")
            count += 1
    elif size := DTYPE_BYTES.get(datatype):
        count = len(data) // size
        position = count * size
    if position != len(data) or datatype not in ("BYTES", *DTYPE_BYTES):
        raise InvalidRequestError(
            f"the {len(data)} bytes of {quoted(name)} are not values of its type, {quoted(datatype)}",
            "send whole values, with a length of four bytes before each of BYTES",
        )
    return count


def _contents(tensor: Any) -> Any:
    if tensor.datatype not in _CONTENTS:
        raise InvalidRequestError(
            f"{quoted(tensor.name)} of the type {quoted(tensor.datatype)} comes without raw_input_contents",
            "send the tensor in raw_input_contents",
        )
    return getattr(tensor.contents, _CONTENTS[tensor.datatype])


def quoted(text: str) -> str:
    """Quote a client's text for a message: printable and not too long."""
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")
