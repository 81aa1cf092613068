"""Checks ``ModelInferRequest``, the message for inference that Triton gets, whatever the client speaks.

Some requests crash Triton 2.51 or give clients access to its memory: classification of a BYTES output divides
by zero, anyone may register and read shared memory, and wrong sizes are not checked
(docs/security/triton-cves.md). None of these features is needed, so all are refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
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

DTYPE_BYTES = {
    **{"BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "FP16": 2, "BF16": 2},
    **{"INT32": 4, "UINT32": 4, "FP32": 4, "INT64": 8, "UINT64": 8, "FP64": 8},
}
"""Size of a value by KServe's type names; BYTES has none."""

_MAX_TENSORS = 64
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
            "the message cannot be read",
            values=f"{len(raw)} bytes",
            limit="the method's message of KServe's protocol",
            remedy="use tritonclient, or the protocol's own definition",
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
            "only operators may choose the arm",
            values="an input arm, without the server's key",
            limit="the header draftproof-key",
            remedy="leave arm out; operators send the server's key, <run directory>/key",
        )
    _check_id(message.id)
    _check_names("input", [each.name for each in message.inputs])
    _check_names("output", [each.name for each in message.outputs])
    _check_parameters(message.parameters)
    for tensor in message.outputs:
        _check_allowed(f"output {quoted(tensor.name)}", tensor.parameters, "binary_data")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequestError(
            "the contents of the inputs are incomplete",
            values=f"{len(message.inputs)} inputs, {len(raw)} raw_input_contents",
            limit="one for each input, or none",
            remedy="send the contents of all inputs in the same way",
        )
    for number, tensor in enumerate(message.inputs):
        _check_allowed(f"input {quoted(tensor.name)}", tensor.parameters, "binary_data_size")
        if raw:
            num_values = count_values(tensor.name, tensor.datatype, raw[number])
        else:
            num_values = len(getattr(tensor.contents, _contents_field(tensor)))
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
            "clients cannot use this model",
            values=f"model {quoted(model)}",
            limit=f"one of {', '.join(sorted(PUBLIC_MODELS))}",
            remedy="use one of these; operators send the server's key, <run directory>/key",
        )


def _check_id(request_id: str) -> None:
    """Refuse an id that is too long or contains a NUL, at which Triton would cut it."""
    num_bytes = len(request_id.encode())
    if num_bytes > MAX_ID_BYTES or "\0" in request_id:
        raise InvalidRequestError(
            "the request id is too long or contains a NUL",
            values=f"{num_bytes} bytes",
            limit=f"at most {MAX_ID_BYTES} bytes, none of them zero",
            remedy="send a shorter one, such as a UUID",
        )


def _check_names(kind: str, names: Sequence[str]) -> None:
    """Refuse too many tensors, names that are too long, and duplicates."""
    if not _are_usable(names) or len(set(names)) < len(names):
        raise InvalidRequestError(
            f"the {kind}s of the request cannot be used",
            values=f"{len(names)} {kind}s, {len(set(names))} different names, {_longest(names)}",
            limit=f"{_MAX_TENSORS} {kind}s, each once, names of {_MAX_NAME_CHARACTERS} printable characters",
            remedy=f"name each {kind} once",
        )


def _check_parameters(parameters: Any) -> None:
    """Refuse too many parameters, those reserved for the gateway, and numbers that JSON does not have.

    Triton passes parameters to models as JSON.
    """
    if not _are_usable(parameters) or any(name.startswith(OWN_PREFIX) for name in parameters):
        raise InvalidRequestError(
            "the parameters of the request cannot be used",
            values=f"{len(parameters)} parameters, {_longest(parameters)}",
            limit=f"{_MAX_TENSORS} parameters with names of {_MAX_NAME_CHARACTERS} printable characters, "
            f"none beginning with {OWN_PREFIX}",
            remedy="send what the model's configuration lists",
        )
    for name, parameter in parameters.items():
        if not math.isfinite(parameter.double_param):
            raise InvalidRequestError(
                "a parameter of the request is not finite",
                values=f"{quoted(name)}: {parameter.double_param}",
                limit="finite numbers",
                remedy="leave it out",
            )


def _check_shape(name: str, shape: Sequence[int], num_values: int) -> None:
    """Refuse a shape that does not fit the values."""
    # The upper bound matters if another dimension is 0: the product is then 0, and sizes overflow in Triton
    # and numpy.
    is_odd = len(shape) > 8 or any(not 0 <= size <= MAX_BODY_BYTES for size in shape)
    if is_odd or math.prod(shape) != num_values:
        raise InvalidRequestError(
            f"the shape of {quoted(name)} does not fit its values",
            values=f"shape {list(shape[:8])}, {num_values} values",
            limit=f"as many values as the dimensions multiply to, at most 8 of up to {MAX_BODY_BYTES}",
            remedy="send the shape of the values",
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
    if datatype != "BYTES":
        size = DTYPE_BYTES.get(datatype, 0)
        if not size or len(data) % size:
            raise _odd_bytes(name, datatype, len(data))
        return len(data) // size
    count = position = 0
    while position < len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count += 1
    if position != len(data):
        raise _odd_bytes(name, datatype, len(data))
    return count


def quoted(text: str) -> str:
    """Quote a client's text for a message: printable and not too long."""
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")


def _are_usable(names: Collection[str]) -> bool:
    """Whether names may be forwarded; Triton would cut a name at its first NUL."""
    return len(names) <= _MAX_TENSORS and all(
        len(name) <= _MAX_NAME_CHARACTERS and name.isprintable() for name in names
    )


def _longest(names: Collection[str]) -> str:
    return f"the longest name has {max(map(len, names), default=0)} characters"


def _check_allowed(of: str, parameters: Iterable[str], allowed: str) -> None:
    """Refuse parameters of a tensor, such as classification and shared memory."""
    others = sorted(set(parameters) - {allowed})
    if others:
        raise InvalidRequestError(
            f"a parameter of {of} is not allowed",
            values=", ".join(quoted(name) for name in others[:4]),
            limit=f"only {allowed}; classification and shared memory are disabled",
            remedy="leave it out; read the tensor itself",
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


def _odd_bytes(name: str, datatype: str, num_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"the bytes of {quoted(name)} are not values of its type",
        values=f"{num_bytes} bytes as {quoted(datatype)}",
        limit="whole values; before each BYTES value its length in four bytes",
        remedy="send the tensor as KServe's protocol describes it",
    )
