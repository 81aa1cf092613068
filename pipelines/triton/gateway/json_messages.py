"""Converts between bodies of HTTP and KServe's gRPC messages.

``generate`` and ``infer`` are Triton's:
https://github.com/triton-inference-server/server/tree/main/docs/protocol (extension_generate.md,
extension_binary_data.md). Triton's own HTTP server is not used: it trusts clients too much
(docs/security/triton-cves.md), does not notice disconnects, and truncates numbers to the type of their input:
4294967299 becomes 3. Here they are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, StrictInt, TypeAdapter, ValidationError
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.request_checks import MAX_DIMENSIONS, MAX_TENSORS, quoted

JSON_TYPES = frozenset(
    {
        *("BYTES", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
        *("FP16", "FP32", "FP64"),
    }
)
"""KServe's names of the types whose values JSON can represent; BYTES are strings."""

_SURROGATE = "\\ud"  # as escaped in JSON
_MAX_DEPTH = 8
_INT64 = np.iinfo(np.int64)

_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class _Head:
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Output:
    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Input:
    name: str
    datatype: str
    shape: Annotated[list[Annotated[StrictInt, Field(ge=0, le=_INT64.max)]], Field(max_length=MAX_DIMENSIONS)]
    data: list[Any] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Infer(_Head):
    inputs: Annotated[list[_Input], Field(max_length=MAX_TENSORS)] = field(default_factory=list)
    outputs: Annotated[list[_Output], Field(max_length=MAX_TENSORS)] = field(default_factory=list)


_READ_HEAD = TypeAdapter(_Head)
_READ_INFER = TypeAdapter(_Infer)


def generate_message(model: str, body: bytes, datatypes: Mapping[str, str]) -> Any:
    """Return the ``ModelInferRequest`` for a body of ``generate`` or ``generate_stream``.

    Args:
        model: Its name.
        body: ``{input: value or values, parameter: value, ...}``; what is no input is a parameter.
        datatypes: KServe's type name of each input of the model.

    Raises:
        InvalidRequestError: A value does not fit the type of its input.
    """
    document = _read_object(body)
    head = _filled(_READ_HEAD, document)
    message = service_pb2.ModelInferRequest(model_name=model, id=head.id)
    _add_parameters(message.parameters, head.parameters)
    for name, value in document.items():
        if name in datatypes:
            array = to_array(name, datatypes[name], value)
            rows = array.reshape(1) if array.ndim == 0 else array
            _add_input(message, name, datatypes[name], (1, *rows.shape), _raw(rows))
        elif name not in ("id", "parameters"):
            _add_parameters(message.parameters, {name: value})
    return message


def infer_message(model: str, body: bytes, json_length: int | None) -> tuple[Any, set[str] | None]:
    """Return the ``ModelInferRequest`` for a body of ``infer``.

    Args:
        model: Its name.
        body: KServe's JSON, and behind it the binary data of the inputs that say so.
        json_length: ``Inference-Header-Content-Length``; None if all is JSON.

    Returns:
        The message, and the outputs that are wanted as binary data; None for all of them.

    Raises:
        InvalidRequestError: The body is invalid, or a value does not fit its type.
    """
    if json_length is not None and not 0 < json_length <= len(body):
        raise InvalidRequestError(
            f"Inference-Header-Content-Length is {json_length} for a body of {len(body)} bytes",
            "send the number of bytes of the JSON",
        )
    split = len(body) if json_length is None else json_length
    asked, rest = _filled(_READ_INFER, _read_object(body[:split])), memoryview(body)[split:]
    message = service_pb2.ModelInferRequest(model_name=model, id=asked.id)
    is_all_binary = asked.parameters.pop("binary_data_output", False) is True
    _add_parameters(message.parameters, asked.parameters)
    for tensor in asked.inputs:
        rest = _take_input(message, tensor, rest)
    if len(rest):
        raise InvalidRequestError(
            f"the body has {len(rest)} bytes more than its inputs", "send the binary_data_size of each input"
        )
    binary = set()
    for output in asked.outputs:
        if output.parameters.pop("binary_data", is_all_binary) is True:
            binary.add(output.name)
        _add_parameters(message.outputs.add(name=output.name).parameters, output.parameters)
    return message, None if is_all_binary and not asked.outputs else binary


def _take_input(message: Any, tensor: _Input, rest: memoryview) -> memoryview:
    """Add one input of ``infer``; returns the remaining binary data."""
    size = tensor.parameters.pop("binary_data_size", None)
    if size is None and tensor.data is not None:
        data = _raw(to_array(tensor.name, tensor.datatype, tensor.data).reshape(-1))
    elif type(size) is int and 0 <= size <= len(rest) and tensor.data is None:
        data, rest = bytes(rest[:size]), rest[size:]
    else:
        raise InvalidRequestError(
            f"{quoted(tensor.name)} has the binary_data_size {quoted(str(size))} of {len(rest)} bytes, and "
            f"{'no' if tensor.data is None else 'other'} data in the JSON",
            "send the data of an input in the JSON, or its size there and the bytes behind it",
        )
    added = _add_input(message, tensor.name, tensor.datatype, tuple(tensor.shape), data)
    _add_parameters(added.parameters, tensor.parameters)
    return rest


def _add_input(message: Any, name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> Any:
    message.raw_input_contents.append(data)
    return message.inputs.add(name=name, datatype=datatype, shape=shape)


def _raw(array: npt.NDArray[Any]) -> bytes:
    if array.dtype != np.object_:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def _add_parameters(parameters: Any, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int) and _INT64.min <= value <= _INT64.max:
            parameters[name].int64_param = value
        elif isinstance(value, float):
            parameters[name].double_param = value
        elif isinstance(value, str):
            parameters[name].string_param = value
        else:
            raise InvalidRequestError(
                f"the parameter {quoted(name)} has a value without a meaning: {quoted(str(value))}",
                "send a string, true, false or a number of at most 64 bits, or leave the parameter out",
            )


def generate_document(response: Any) -> bytes:
    """Return the JSON of ``generate`` or of one event of ``generate_stream``.

    Args:
        response: The ``ModelInferResponse``. Tensors with several values become arrays.
    """
    document = _header(response)
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        values = _values(tensor.datatype, raw)
        document[tensor.name] = values[0] if len(values) == 1 else values
    return _written(document)


def infer_document(response: Any, binary: set[str] | None) -> tuple[bytes, int | None]:
    """Return the body of ``infer``, and the length of its JSON if binary data follows.

    Args:
        response: The ``ModelInferResponse``.
        binary: Names of outputs to send as binary data; None for all.
    """
    outputs, data = [], []
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        described = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if binary is None or tensor.name in binary:
            described["parameters"] = {"binary_data_size": len(raw)}
            data.append(raw)
        else:
            described["data"] = _values(tensor.datatype, raw)
        outputs.append(described)
    written = _written({**_header(response), "outputs": outputs})
    return b"".join([written, *data]), len(written) if data else None


def _header(response: Any) -> dict[str, Any]:
    header = {"model_name": response.model_name, "model_version": response.model_version}
    return {**header, "id": response.id} if response.id else header


def _values(datatype: str, raw: bytes) -> list[Any]:
    if datatype == "BYTES":
        return [item.decode("utf-8", "replace") for item in deserialize_bytes_tensor(raw)]
    return list(np.frombuffer(raw, triton_to_np_dtype(datatype)).tolist())


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _read_object(body: bytes) -> dict[str, Any]:
    """Read a body that is a JSON object.

    Raises:
        InvalidRequestError: It is not an object, is nested too deeply, or has duplicate names or half of a
            surrogate pair.
    """
    try:
        text = body.decode("utf-8")  # json.loads would guess the encoding and be lenient
        document = json.loads(text, object_pairs_hook=_unique)
        if _SURROGATE in text.lower():
            json.dumps(document, ensure_ascii=False).encode("utf-8")  # raises for half of a pair
        if not isinstance(document, dict) or _depth(document) > _MAX_DEPTH:
            raise ValueError(f"{type(document).__name__}, nested {_depth(document)} deep")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the body is not one JSON object, nested at most {_MAX_DEPTH} deep: {quoted(str(error))}",
            "send the inputs of the model as the members of one object",
        ) from None
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return document


def _depth(value: Any) -> int:
    """Return the nesting depth of objects and arrays; 0 for a plain value."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _filled(kind: TypeAdapter[_Kind], document: dict[str, Any]) -> _Kind:
    try:
        return kind.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidRequestError(
            f"{quoted(place)} cannot be read: {first['msg']}", "send it as KServe's protocol describes it"
        ) from None


def to_array(name: str, datatype: str, value: Any) -> npt.NDArray[Any]:
    """Convert a JSON value or nested arrays of values to an array of the input's type.

    Args:
        name: Name of the input.
        datatype: KServe's type name.
        value: Result of ``json.loads``.

    Returns:
        An array of strings for BYTES, otherwise of the type itself; without dimensions for a single value.

    Raises:
        InvalidRequestError: A value does not fit the type, or rows have different lengths.
    """
    if datatype not in JSON_TYPES:
        raise InvalidRequestError(
            f"the type of {quoted(name)} is unknown: {quoted(datatype)}",
            f"send one of {', '.join(sorted(JSON_TYPES))}, as the model's configuration says",
        )
    array = np.array(value, np.object_)
    for each in array.reshape(-1).tolist():
        if isinstance(each, list):
            raise InvalidRequestError(
                f"the rows of {quoted(name)} have different lengths", "send rows of the same length"
            )
        if not _fits(datatype, each):
            raise InvalidRequestError(
                f"{quoted(name)} has a value that does not fit its type: {quoted(json.dumps(each))}",
                f"send {_range(datatype)}; numbers are never truncated",
            )
    return array if datatype == "BYTES" else array.astype(triton_to_np_dtype(datatype))


def _fits(datatype: str, value: Any) -> bool:
    if datatype in ("BYTES", "BOOL"):
        return isinstance(value, str if datatype == "BYTES" else bool)
    lowest, highest = _limits(datatype)
    numbers = int if isinstance(highest, int) else (int, float)
    # NaN and Infinity, which Python's json accepts, are not between the limits.
    return isinstance(value, numbers) and not isinstance(value, bool) and lowest <= value <= highest


def _range(datatype: str) -> str:
    if datatype in ("BYTES", "BOOL"):
        return "a string" if datatype == "BYTES" else "true or false"
    lowest, highest = _limits(datatype)
    return f"a {'whole number' if isinstance(highest, int) else 'number'} from {lowest} to {highest}"


def _limits(datatype: str) -> tuple[float, float]:
    """Return the lowest and the highest number of a type, as whole numbers for a type of whole numbers."""
    kind: np.dtype[Any] = np.dtype(triton_to_np_dtype(datatype))
    if kind.kind == "f":
        return float(np.finfo(kind).min), float(np.finfo(kind).max)
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)
