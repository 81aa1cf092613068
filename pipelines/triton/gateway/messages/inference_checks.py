"""Checks what a request may ask of Triton, for all protocols.

Some requests crash Triton 2.51 or give clients access to its memory: classification of a BYTES output divides
by zero, anyone may register and read shared memory, and wrong sizes are not checked
(docs/security/triton-cves.md). None of these features is needed, so all are refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.triton import OWN_PREFIX

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
_MAX_ID_BYTES = 256  # the models' limit, checked before Triton sees the id
_LONGEST_QUOTE = 80
_OUTPUT_PARAMETERS = frozenset({"binary_data"})
_INPUT_PARAMETERS = frozenset({"binary_data_size"})


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


def check_id(request_id: str) -> None:
    """Refuse an id that is too long or contains a NUL, at which Triton would cut it.

    Raises:
        InvalidRequestError: The id is invalid.
    """
    num_bytes = len(request_id.encode())
    if num_bytes > _MAX_ID_BYTES or "\0" in request_id:
        raise InvalidRequestError(
            "the request id is too long or contains a NUL",
            values=f"{num_bytes} bytes",
            limit=f"at most {_MAX_ID_BYTES} bytes, none of them zero",
            remedy="send a shorter one, such as a UUID",
        )


def check_names(kind: str, names: Sequence[str]) -> None:
    """Refuse too many tensors, names that are too long, and duplicates.

    Args:
        kind: "input" or "output".
        names: Names of the tensors.

    Raises:
        InvalidRequestError: The names are invalid.
    """
    if not _are_usable(names) or len(set(names)) < len(names):
        raise InvalidRequestError(
            f"the {kind}s of the request cannot be used",
            values=f"{len(names)} {kind}s, {len(set(names))} different names, {_longest(names)}",
            limit=f"{_MAX_TENSORS} {kind}s, each once, names of {_MAX_NAME_CHARACTERS} printable characters",
            remedy=f"name each {kind} once",
        )


def check_input_parameters(name: str, parameters: Iterable[str]) -> None:
    """Refuse parameters of an input, such as shared memory.

    Raises:
        InvalidRequestError: A parameter is not allowed.
    """
    _check_allowed(f"input {quoted(name)}", parameters, _INPUT_PARAMETERS)


def check_output_parameters(name: str, parameters: Iterable[str]) -> None:
    """Refuse parameters of an output, such as classification and shared memory.

    Raises:
        InvalidRequestError: A parameter is not allowed.
    """
    _check_allowed(f"output {quoted(name)}", parameters, _OUTPUT_PARAMETERS)


def check_request_parameters(names: Collection[str]) -> None:
    """Refuse too many parameters, and those reserved for the gateway.

    Raises:
        InvalidRequestError: The parameters are not allowed.
    """
    if not _are_usable(names) or any(name.startswith(OWN_PREFIX) for name in names):
        raise InvalidRequestError(
            "the parameters of the request cannot be used",
            values=f"{len(names)} parameters, {_longest(names)}",
            limit=f"{_MAX_TENSORS} parameters with names of {_MAX_NAME_CHARACTERS} printable characters, "
            f"none beginning with {OWN_PREFIX}",
            remedy="send what the model's configuration lists",
        )


def check_shape(name: str, shape: Sequence[int], num_values: int) -> None:
    """Refuse a shape that does not fit the values.

    Args:
        name: Name of the tensor.
        shape: Shape according to the client.
        num_values: Number of values received.

    Raises:
        InvalidRequestError: A dimension is negative or too large, or their product is not ``num_values``.
    """
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


def _check_allowed(of: str, parameters: Iterable[str], allowed: Collection[str]) -> None:
    others = sorted(set(parameters) - set(allowed))
    if others:
        raise InvalidRequestError(
            f"a parameter of {of} is not allowed",
            values=", ".join(quoted(name) for name in others[:4]),
            limit=f"only {', '.join(allowed)}; classification and shared memory are disabled",
            remedy="leave it out; read the tensor itself",
        )


def _odd_bytes(name: str, datatype: str, num_bytes: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"the bytes of {quoted(name)} are not values of its type",
        values=f"{num_bytes} bytes as {quoted(datatype)}",
        limit="whole values; before each BYTES value its length in four bytes",
        remedy="send the tensor as KServe's protocol describes it",
    )
