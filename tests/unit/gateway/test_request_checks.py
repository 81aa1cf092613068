"""Tests of the checks of a ModelInferRequest, from gRPC or JSON, before Triton reads it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.json_messages import generate_message, infer_message
from pipelines.triton.gateway.request_checks import (
    DTYPE_BYTES,
    MAX_BODY_BYTES,
    check_request,
    count_values,
    parse,
)
from tests.support.examples import examples


def request(**raw: bytes) -> Any:
    """Return a valid request, with further inputs of one INT32 each."""
    message = service_pb2.ModelInferRequest(model_name="generate")
    for name, data in {"text_input": b"\1\0\0\0x", **raw}.items():
        message.inputs.add(name=name, datatype="BYTES" if name == "text_input" else "INT32", shape=[1, 1])
        message.raw_input_contents.append(data)
    return message


def refused(message: Any, *, is_operator: bool = False) -> str:
    with pytest.raises(InvalidRequestError) as error:
        check_request(message, is_operator=is_operator)
    assert len(str(error.value)) < 1000
    return str(error.value)


def test_a_request_is_not_changed() -> None:
    sent = request(max_tokens=np.int32(3).tobytes())
    sent.parameters["timeout"].int64_param = 5
    sent.outputs.add(name="text_output").parameters["binary_data"].bool_param = True
    before = parse(sent.SerializeToString())
    check_request(sent, is_operator=False)
    assert sent == before


def test_bytes_that_are_no_message_are_refused() -> None:
    for raw in (b"\xff", b"\x0a\x05abc", bytes(10), b"\x1a\2\xff\xfe"):  # the last: an id that is no UTF-8
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            parse(raw)


@pytest.mark.parametrize(
    "model", ["speculative", "target", "draft", "", "no such model", "generate/../target"]
)
def test_clients_ask_public_models_alone(model: str) -> None:
    message = request()
    message.model_name = model
    assert "clients cannot use this model" in refused(message)
    check_request(message, is_operator=True)


@pytest.mark.parametrize("is_operator", [False, True])
@pytest.mark.parametrize(
    "parameter",
    ["classification", "shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "x"],
)
def test_classification_and_shared_memory_are_closed_to_all(parameter: str, is_operator: bool) -> None:
    """The first crashes Triton 2.51, the others read and write its memory."""
    asked = request()
    asked.outputs.add(name="text_output").parameters[parameter].int64_param = 3
    assert "classification and shared memory are disabled" in refused(asked, is_operator=is_operator)
    given = request()
    given.inputs[0].parameters[parameter].string_param = "region"
    assert "classification and shared memory are disabled" in refused(given, is_operator=is_operator)


@pytest.mark.parametrize("name", ["draftproof_key", "draftproof_ping", "draftproof_"])
def test_the_gateway_s_own_parameters_are_closed(name: str) -> None:
    message = request()
    message.parameters[name].string_param = "guess"
    assert "begins with draftproof_" in refused(message, is_operator=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_parameters_are_finite(value: float) -> None:
    message = request()
    message.parameters["timeout"].double_param = value
    assert "is not finite" in refused(message)


@pytest.mark.parametrize("request_id", ["a" * 257, "☕" * 86, "a\0b"])
def test_an_id_is_bounded_in_bytes_and_whole(request_id: str) -> None:
    message = request()
    message.id = "☕" * 85
    check_request(message, is_operator=False)
    message.id = request_id
    assert "has more than 256 or contains a NUL" in refused(message)


def test_tensors_and_parameters_are_few_with_short_names_and_each_once() -> None:
    twice = request()
    twice.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    twice.raw_input_contents.append(b"\1\0\0\0y")
    assert "inputs of the request cannot be used" in refused(twice)
    outputs = request()
    for _ in range(2):
        outputs.outputs.add(name="text_output")
    assert "outputs of the request cannot be used" in refused(outputs)
    many = request(**{f"i{number}": bytes(4) for number in range(64)})
    assert "inputs of the request cannot be used" in refused(many)
    long = request()
    long.outputs.add(name="o" * 257)
    assert "outputs of the request cannot be used" in refused(long)
    for names in (["p" * 257], [f"p{number}" for number in range(65)]):
        message = request()
        for name in names:
            message.parameters[name].bool_param = True
        assert "parameters of the request cannot be used" in refused(message)


@pytest.mark.parametrize(
    "shape", [[1], [1, 3], [-1, -2], [0, 2], [], [1] * 7 + [2, 1], [2**32, 2**32], [1, -2, -1]]
)
def test_a_shape_that_does_not_fit_the_values_is_refused(shape: list[int]) -> None:
    message = request(a=np.int32([1, 2]).tobytes())
    message.inputs[1].shape[:] = shape
    assert "does not fit" in refused(message)


def test_beside_a_zero_no_dimension_may_overflow() -> None:
    message = request(a=b"")
    message.inputs[1].shape[:] = [0, MAX_BODY_BYTES]
    check_request(message, is_operator=False)
    for size in (MAX_BODY_BYTES + 1, 2**62, 2**63 - 1):
        message.inputs[1].shape[:] = [0, size]
        assert "does not fit" in refused(message)


@pytest.mark.parametrize(("datatype", "size"), DTYPE_BYTES.items())
def test_bytes_are_whole_values(datatype: str, size: int) -> None:
    assert count_values("x", datatype, bytes(3 * size)) == 3
    if size > 1:
        with pytest.raises(InvalidRequestError, match="are not values of its type"):
            count_values("x", datatype, bytes(3 * size - 1))


@pytest.mark.parametrize(
    "data",
    [
        *(b"\0", b"\1\0\0", b"\1\0\0\0", b"\1\0\0\0xx", b"\2\0\0\0x"),
        *(b"\0\0\0\0\1", b"\xff\xff\xff\xff", b"\xff\xff\xff\xffx"),
    ],
)
def test_lengths_of_text_that_lie_are_refused(data: bytes) -> None:
    message = request()
    message.raw_input_contents[0] = data
    assert "are not values of its type" in refused(message)


def test_an_unknown_type_is_refused() -> None:
    for datatype in ("", "INT4", "TYPE_INT32", "d" * 1_000_000):
        message = request(a=bytes(4))
        message.inputs[1].datatype = datatype
        assert "are not values of its type" in refused(message)


def test_contents_come_for_all_inputs_in_one_way() -> None:
    few = request(a=bytes(4))
    del few.raw_input_contents[1]
    assert "2 inputs and 1 raw_input_contents" in refused(few)
    many = request()
    many.raw_input_contents.append(b"")
    assert "1 inputs and 2 raw_input_contents" in refused(many)


@pytest.mark.parametrize(
    ("datatype", "field", "value"),
    [
        *(("BOOL", "bool", True), ("INT8", "int", 1), ("INT64", "int64", 1), ("UINT16", "uint", 1)),
        *(("UINT64", "uint64", 1), ("FP32", "fp32", 0.5), ("FP64", "fp64", 0.5), ("BYTES", "bytes", b"x")),
    ],
)
def test_contents_may_stand_in_the_tensors(datatype: str, field: str, value: Any) -> None:
    message = service_pb2.ModelInferRequest(model_name="generate")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[1, 2])
    getattr(tensor.contents, f"{field}_contents").extend([value] * 2)
    check_request(message, is_operator=False)
    tensor.shape[:] = [1, 3]
    assert "does not fit" in refused(message)
    tensor.datatype = "FP16"  # which has no field
    assert "without raw_input_contents" in refused(message)


DATATYPES = {f"in_{name.lower()}": name for name in (*DTYPE_BYTES, "BYTES")}
INFER_NAMES = (
    *("id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data"),
    *("binary_data_size", "binary_data", "binary_data_output", "classification", "draftproof_key"),
)
NAMES = st.sampled_from((*DATATYPES, *INFER_NAMES)) | st.text(st.characters(), max_size=4)
NUMBERS = st.sampled_from([2**31, 2**32 + 3, -(2**63), 2**63, 2**64 - 1, 10**400, 65504, 65505, -1, 0, 1, 8])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | NUMBERS
    | st.floats()
    | st.sampled_from((*DTYPE_BYTES, "BYTES"))
    | st.text(st.characters(), max_size=5)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
# Often enough valid, so that the code after the first check is reached, too.
SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**62, 2**63, 1.0]), max_size=3)
TENSORS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES,
        "datatype": st.sampled_from((*DTYPE_BYTES, "BYTES")) | SCALARS,
        "shape": SHAPES | SCALARS,
        "data": st.lists(st.integers(0, 3) | st.text(max_size=2) | st.booleans(), max_size=3) | VALUES,
        "parameters": st.dictionaries(NAMES, st.integers(0, 9) | SCALARS, max_size=2) | SCALARS,
    },
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=5) | st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(TENSORS, max_size=3),
        "outputs": st.lists(TENSORS, max_size=2),
        "parameters": st.dictionaries(NAMES, SCALARS, max_size=3),
        "id": SCALARS,
    },
)
RAW = BODIES.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=40)


def check(message: Any) -> None:
    """Check that a message is refused, or that Triton can read it."""
    check_request(message, is_operator=False)
    assert parse(message.SerializeToString()) == message
    assert len(message.raw_input_contents) in (0, len(message.inputs))


@examples(500, derandomize=True)
@example(b"null")
@example(b'{"\\ud800": 1}')
@given(RAW)
def test_any_body_of_generate(body: bytes) -> None:
    try:
        check(generate_message("generate", body, DATATYPES))
    except InvalidRequestError as error:
        assert len(str(error)) < 1500


@examples(500, derandomize=True)
@given(RAW, st.binary(max_size=16), st.integers(-8, 8) | st.none())
def test_any_body_of_infer(body: bytes, behind: bytes, off_by: int | None) -> None:
    try:
        length = None if off_by is None else len(body) + max(0, off_by - 6)
        message, binary = infer_message("generate", body + behind if off_by is not None else body, length)
        assert binary is None or binary <= {each.name for each in message.outputs}
        check(message)
    except InvalidRequestError as error:
        assert len(str(error)) < 1500


@examples(300, derandomize=True)
@given(st.data())
def test_any_message(data: st.DataObject) -> None:
    """The messages are valid ones with a few bytes changed, if they can still be parsed."""
    good = generate_message("generate", b'{"in_bytes": ["a", "b"], "in_int32": 3, "timeout": 5}', DATATYPES)
    raw = bytearray(good.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        check(parse(bytes(raw)))
    except InvalidRequestError as error:
        assert len(str(error)) < 1500
