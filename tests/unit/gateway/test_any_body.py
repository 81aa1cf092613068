"""Tests that any JSON or message of a client is either answered or refused as the client's mistake."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.triton.gateway.json_messages import generate_message, infer_message
from pipelines.triton.gateway.request_checks import DTYPE_BYTES, check_request, parse
from tests.support.examples import examples

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
