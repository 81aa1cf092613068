"""Converts bodies of HTTP requests to the equivalent gRPC messages.

``generate`` and ``infer`` are Triton's:
https://github.com/triton-inference-server/server/tree/main/docs/protocol (extension_generate.md,
extension_binary_data.md). Triton's own HTTP server is not used: it trusts clients too much
(docs/security/triton-cves.md) and does not notice disconnects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.messages.inference_checks import quoted
from pipelines.triton.gateway.messages.json_values import member, read_object, to_array

Datatypes = Mapping[str, str]
"""KServe's type name of each input."""

_INT64 = np.iinfo(np.int64)


def generate_message(model: str, body: bytes, datatypes: Datatypes) -> Any:
    """Return the ``ModelInferRequest`` for a body of ``generate`` or ``generate_stream``.

    Args:
        model: Its name.
        body: ``{input: value or values, parameter: value, ...}``; what is no input is a parameter.
        datatypes: The types of the model's inputs.

    Raises:
        InvalidRequestError: A value does not fit the type of its input.
    """
    document = read_object(body)
    message = service_pb2.ModelInferRequest(model_name=model, id=member(document, "id", str, ""))
    _add_parameters(message.parameters, member(document, "parameters", dict, {}))
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
            "the length of the JSON does not fit the body",
            values=f"Inference-Header-Content-Length {json_length}, body of {len(body)} bytes",
            limit="1 to the length of the body",
            remedy="send the number of bytes of the JSON",
        )
    split = len(body) if json_length is None else json_length
    document, rest = read_object(body[:split]), memoryview(body)[split:]
    message = service_pb2.ModelInferRequest(model_name=model, id=member(document, "id", str, ""))
    parameters = dict(member(document, "parameters", dict, {}))
    is_all_binary = parameters.pop("binary_data_output", False) is True
    _add_parameters(message.parameters, parameters)
    for tensor in _tensors(document, "inputs"):
        rest = _take_input(message, tensor, rest)
    if len(rest):
        raise InvalidRequestError(
            "the body is longer than its inputs",
            values=f"{len(rest)} bytes more",
            limit="the sum of the inputs' binary_data_size",
            remedy="send the size of each input",
        )
    binary = set()
    for tensor in _tensors(document, "outputs"):
        wanted = message.outputs.add(name=member(tensor, "name", str))
        given = dict(member(tensor, "parameters", dict, {}))
        if given.pop("binary_data", is_all_binary) is True:
            binary.add(wanted.name)
        _add_parameters(wanted.parameters, given)
    return message, None if is_all_binary and not message.outputs else binary


def _take_input(message: Any, tensor: dict[str, Any], rest: memoryview) -> memoryview:
    """Add one input of ``infer``; returns the remaining binary data."""
    name, datatype = member(tensor, "name", str), member(tensor, "datatype", str)
    shape = member(tensor, "shape", list)
    if any(type(size) is not int or not 0 <= size <= _INT64.max for size in shape):
        raise InvalidRequestError(
            f"the shape of {quoted(name)} is invalid",
            values=quoted(str(shape)),
            limit="whole numbers from 0",
            remedy="send the shape of the values",
        )
    parameters = dict(member(tensor, "parameters", dict, {}))
    size = parameters.pop("binary_data_size", None)
    if size is None:
        data = _raw(to_array(name, datatype, member(tensor, "data", list)).reshape(-1))
    elif type(size) is int and 0 <= size <= len(rest) and "data" not in tensor:
        data, rest = bytes(rest[:size]), rest[size:]
    else:
        raise InvalidRequestError(
            f"the binary data of {quoted(name)} are not there",
            values=f"binary_data_size={quoted(str(size))}, {len(rest)} bytes are left",
            limit="the bytes behind the JSON, and no data in it",
            remedy="send the size of each input",
        )
    _add_parameters(_add_input(message, name, datatype, tuple(shape), data).parameters, parameters)
    return rest


def _tensors(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [member({name: each}, name, dict) for each in member(document, name, list, [])]


def _add_input(message: Any, name: str, datatype: str, shape: tuple[int, ...], data: bytes) -> Any:
    message.raw_input_contents.append(data)
    return message.inputs.add(name=name, datatype=datatype, shape=shape)


def _raw(array: npt.NDArray[Any]) -> bytes:
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in array.reshape(-1))


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
                "a parameter of the request has no meaning",
                values=f"{quoted(name)}: {quoted(str(value))}",
                limit="a string, true or false, a number, a whole number of at most 64 bits",
                remedy="leave it out; inputs and parameters of a model are in its configuration",
            )
