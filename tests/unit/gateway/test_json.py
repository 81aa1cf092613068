"""Tests of converting JSON requests to gRPC messages, and answers to JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import triton_to_np_dtype

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.json_messages import (
    JSON_TYPES,
    generate_document,
    generate_message,
    infer_document,
    infer_message,
    to_array,
)

DATATYPES = {
    **{"text_input": "BYTES", "max_tokens": "INT32", "seed": "UINT64", "stream": "BOOL"},
    **{"temperature": "FP32", "stop_words": "BYTES", "logit_bias_ids": "INT32"},
}


def refusal(body: str | bytes, json_length: int | None = None) -> str:
    """Return the refusal of a body by generate, or by infer if a length of its JSON is given."""
    raw = body if isinstance(body, bytes) else body.encode()
    with pytest.raises(InvalidRequestError) as refused:
        if json_length is None:
            generate_message("generate", raw, DATATYPES)
        else:
            infer_message("generate", raw, json_length)
    error = refused.value
    assert error.message and error.remedy
    assert len(str(error)) < 1000 and str(error).isprintable(), "a client's text is not repeated whole"
    return str(error)


def test_a_body_of_generate_becomes_a_message() -> None:
    inputs = {"text_input": "Où ☕", "max_tokens": 5, "seed": 2**64 - 1, "stop_words": ["a", "bc"]}
    others = {"id": r"\ud83d\ude00", "parameters": {"timeout": 7}, "temperature": 0, "stream": True}
    body = json.dumps({**inputs, **others, "unknown": "x"}).replace("\\\\", "\\")  # a surrogate pair is text
    message = generate_message("generate", body.encode(), DATATYPES)
    assert (message.model_name, message.id) == ("generate", "😀")
    raw = {each.name: data for each, data in zip(message.inputs, message.raw_input_contents, strict=True)}
    text = "Où ☕".encode()
    assert raw == {
        "text_input": len(text).to_bytes(4, "little") + text,
        "max_tokens": np.int32(5).tobytes(),
        "seed": np.uint64(2**64 - 1).tobytes(),
        "stop_words": b"\1\0\0\0a\2\0\0\0bc",
        "temperature": np.float32(0).tobytes(),
        "stream": b"\1",
    }
    shapes = {each.name: (each.datatype, list(each.shape)) for each in message.inputs}
    assert shapes["stop_words"] == ("BYTES", [1, 2]) and shapes["seed"] == ("UINT64", [1, 1])
    assert message.parameters["timeout"].int64_param == 7
    assert message.parameters["unknown"].string_param == "x"


@pytest.mark.parametrize(
    ("name", "literals"),
    [
        ("max_tokens", ("4294967299", "2147483648", "-2147483649", "1e3", "3.0", "true")),
        ("max_tokens", ('"3"', "null", "{}", "NaN", "[1, 2.5]", "1" + "0" * 4000)),
        ("seed", ("-1", "18446744073709551616", "1.0", "false")),
        ("temperature", ("1e39", "1e999", "NaN", "-Infinity", "true", '"0"', "[{}]")),
        ("stream", ("1", "0", '"true"', "null")),
        ("text_input", ("3", "null", "true", '["a", 1]', '{"a": 1}')),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused_and_never_cut(
    name: str, literals: tuple[str, ...]
) -> None:
    for literal in literals:
        assert f"'{name}' has a value that does not fit its type" in refusal(f'{{"{name}": {literal}}}')


@pytest.mark.parametrize("datatype", sorted(JSON_TYPES - {"BOOL", "BYTES"}))
def test_a_type_takes_its_limits_and_nothing_beyond(datatype: str) -> None:
    kind: np.dtype[Any] = np.dtype(triton_to_np_dtype(datatype))
    if kind.kind == "f":
        limits = [float(np.finfo(kind.type).min), float(np.finfo(kind.type).max)]
        beyond = [limit * 1.001 for limit in limits]
    else:
        limits = [int(np.iinfo(kind).min), int(np.iinfo(kind).max)]
        beyond = [limits[0] - 1, limits[1] + 1]
    array = to_array("x", datatype, limits)
    assert array.tolist() == limits and array.dtype == kind
    for value in beyond:
        with pytest.raises(InvalidRequestError, match=r"does not fit its type"):
            to_array("x", datatype, value)


def test_arrays_are_of_known_types_and_have_rows_of_one_length() -> None:
    for datatype in ("BF16", "", "int32", "FP8"):
        with pytest.raises(InvalidRequestError, match="type of 'x' is unknown"):
            to_array("x", datatype, 1)
    for value in ([[1, 2], [3]], [[1], 2], [[1, 2], []], [[], [1]], [[[1]], [[2, 3]]]):
        assert "different lengths" in refusal(json.dumps({"logit_bias_ids": value}))
    assert to_array("x", "INT32", []).shape == (0,)
    assert to_array("x", "INT32", [[], []]).shape == (2, 0)
    assert to_array("x", "BYTES", [["a"], ["b"]]).shape == (2, 1)


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "[]", "null", "3", '"text"', "{} {}", '{"a": 1,}', "{'a': 1}", '{"text_input": "\n"}'),
        *('{"max_tokens": 1, "max_tokens": 2}', '{"parameters": {"a": 1, "a": 1}}'),
        *('{"text_input": "\\ud800"}', '{"\\udfff": 1}', '{"id": "\\uDC00\\ud800"}'),
        *(b'{"text_input": "\xff"}', b'{"text_input": "\xed\xa0\x80"}', '{"max_tokens": 1}'.encode("utf-16")),
        *('{"text_input": ' + "[" * n + "]" * n + "}" for n in (8, 100, 100_000)),
        *('{"id": 1}', '{"id": null}', '{"parameters": []}', '{"parameters": {"a": []}}'),
        *('{"unknown": null}', '{"unknown": 9223372036854775808}', '{"unknown": ["a"]}'),
    ],
)
def test_what_cannot_be_read_is_refused(body: str | bytes) -> None:
    refusal(body)


def json_and_length(document: dict[str, Any], binary: bytes = b"") -> tuple[bytes, int]:
    written = json.dumps(document).encode()
    return written + binary, len(written)


def test_a_client_s_own_long_names_and_values_are_not_repeated() -> None:
    long = "n" * 1_000_000
    refusal(json.dumps({"text_input": {long: long}}))
    refusal(json.dumps({long: None}))
    whole = {"name": long, "datatype": "INT32", "shape": [1], "data": [1]}
    for other in ({"data": ["x"]}, {"data": [[1], [2, 3]]}, {"datatype": long}, {"shape": [long]}):
        refusal(*json_and_length({"inputs": [{**whole, **other}]}))


def tensor(
    name: str, data: Any = None, size: Any = None, shape: Any = (1, 2), datatype: str = "INT32"
) -> Any:
    described: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    described |= {} if data is None else {"data": data}
    return described | ({} if size is None else {"parameters": {"binary_data_size": size}})


def test_a_body_of_infer_becomes_a_message() -> None:
    document = {
        "id": "mine",
        "inputs": [tensor("a", [[1, 2]]), tensor("b", size=8), tensor("c", ["x", "y"], datatype="BYTES")],
        "outputs": [{"name": "o", "parameters": {"binary_data": True}}, {"name": "p"}],
        "parameters": {"timeout": 5},
    }
    body, length = json_and_length(document, np.arange(2, dtype=np.int32).tobytes())
    message, binary = infer_message("generate", body, length)
    numbers = [np.int32(each).tobytes() for each in ([1, 2], [0, 1])]
    assert list(message.raw_input_contents) == [*numbers, b"\1\0\0\0x\1\0\0\0y"]
    assert [list(each.shape) for each in message.inputs] == [[1, 2]] * 3
    assert not any(each.parameters for each in (*message.inputs, *message.outputs)), "read here"
    assert binary == {"o"} and [each.name for each in message.outputs] == ["o", "p"]
    assert message.id == "mine" and message.parameters["timeout"].int64_param == 5


def test_all_outputs_may_be_wanted_as_binary_data() -> None:
    every: dict[str, Any] = {"inputs": [], "parameters": {"binary_data_output": True}}
    message, binary = infer_message("generate", json.dumps(every).encode(), None)
    assert binary is None and not message.parameters
    named = {**every, "outputs": [{"name": "o"}, {"name": "p", "parameters": {"binary_data": False}}]}
    assert infer_message("generate", json.dumps(named).encode(), None)[1] == {"o"}


@pytest.mark.parametrize(
    "inputs",
    [
        *([tensor("a", size=size)] for size in (4, 9, 8.0, "8", True)),  # 8 bytes are sent
        [tensor("a", size=-8), tensor("b", size=16)],
        [tensor("a", [1, 2], size=8)],
        *([tensor("a", size=8, shape=shape)] for shape in ([1, -2], [2**63], [1.0, 2], "12")),
        [tensor("a", size=8), tensor("b")],
        [{"name": 1, "datatype": "INT32", "shape": [1], "data": [1]}],
        [{"name": "a", "shape": [1], "data": [1]}],
        ["a"],
        {"name": "a"},
    ],
)
def test_inputs_whose_sizes_lie_are_refused(inputs: Any) -> None:
    refusal(*json_and_length({"inputs": inputs}, bytes(8)))


@pytest.mark.parametrize("json_length", [0, -1, 3, 100])
def test_a_length_of_the_json_that_does_not_fit_is_refused(json_length: int) -> None:
    refusal(b'{"inputs": []}', json_length)


def test_an_answer_is_flat_or_carries_what_is_wanted_as_binary_data() -> None:
    answer = service_pb2.ModelInferResponse(model_name="generate", model_version="1", id="mine")
    for name, datatype, shape, raw in (
        ("text_output", "BYTES", [1, 1], b"\4\0\0\0\xe2\x98\x95\xff"),  # bytes that are not valid text
        ("output_ids", "INT32", [1, 2], np.int32([7, -8]).tobytes()),
        ("seed", "UINT64", [1, 1], np.uint64([2**64 - 1]).tobytes()),
    ):
        answer.outputs.add(name=name, datatype=datatype, shape=shape)
        answer.raw_output_contents.append(raw)
    header = {"model_name": "generate", "model_version": "1", "id": "mine"}
    values = {"text_output": "☕�", "output_ids": [7, -8], "seed": 2**64 - 1}
    assert json.loads(generate_document(answer)) == {**header, **values}
    written, length = infer_document(answer, set())
    assert length is None
    assert [each["data"] for each in json.loads(written)["outputs"]] == [["☕�"], [7, -8], [2**64 - 1]]
    written, length = infer_document(answer, {"output_ids"})
    described = {"name": "output_ids", "datatype": "INT32", "shape": [1, 2]}
    assert json.loads(written[:length])["outputs"][1] == {**described, "parameters": {"binary_data_size": 8}}
    assert written[length:] == np.int32([7, -8]).tobytes()
    written, length = infer_document(answer, None)
    assert written[length:] == b"".join(answer.raw_output_contents)
