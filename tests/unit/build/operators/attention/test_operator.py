"""Tests of attention and products in a graph of OpenVINO: what they refuse instead of reading beyond it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from build.networks.weight_only import quantize_int8
from build.openvino.operations import parameter
from build.openvino.own_operators import OwnAttention, own_product
from build.openvino.paged_attention import network_inputs
from pipelines.executor.step import Chunk, pack
from tests.support.compiler import needs_compiler

pytestmark = needs_compiler

HEADS, SIZE, BLOCK, NUM_BLOCKS = 2, 16, 32, 4
CONFIG: Any = SimpleNamespace(
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    head_size=SIZE,
    own_attention_reason=None,
    attention_scale=0.25,
    attention_softcap=None,
)
NAMES = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")


def infer(model: ov.Model, arrays: dict[str, Any]) -> Any:
    """Return the output; ``infer`` of OpenVINO would hide that an operation failed."""
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    for name, array in arrays.items():
        request.set_tensor(name, ov.Tensor(array))
    request.start_async()
    request.wait()
    return request.get_output_tensor(0).data.copy()


def attend(**changed: Any) -> Any:
    """Compute two requests, of 40 and of 3 tokens."""
    own, inputs = OwnAttention(CONFIG, "float32"), network_inputs()
    caches = [own.cache(f"{kind}_cache.0") for kind in ("key", "value")]
    rows = [parameter(name, [-1, HEADS * SIZE], ov.Type.f32) for name in ("query", "key", "value")]
    output = own.attend(rows, caches, inputs, 0, None)
    model = ov.Model([ops.result(output)], [*rows, *caches, *(inputs[name] for name in NAMES)], "attention")
    chunks = [
        Chunk(np.zeros(count, np.int32), 0, blocks, is_decode=False, num_logits=0)
        for count, blocks in ((40, (1, 3)), (3, (2,)))
    ]
    packed = pack(chunks, BLOCK)
    given = {name: getattr(packed, name) for name in NAMES}
    given |= {name: np.ones((43, HEADS * SIZE), np.float32) for name in ("query", "key", "value")}
    for cache in caches:
        width = cache.get_partial_shape()[1].get_length()
        given[cache.output(0).get_any_name()] = np.zeros((NUM_BLOCKS, width), np.uint8)
    return infer(model, given | changed)


def integers(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def test_a_step_is_computed() -> None:
    np.testing.assert_allclose(attend(), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"past_lens": integers(0)}, "1 sequences have 3 begins"),
        ({"subsequence_begins": integers(0, 40)}, "2 sequences have 2 begins"),
        ({"subsequence_begins": integers(0, 44, 43)}, "do not divide 43"),
        ({"subsequence_begins": integers(0, 40, 44)}, "do not divide 43"),
        ({"block_indices_begins": integers(0, 2)}, "2 sequences have 2 begins"),
        ({"block_indices_begins": integers(0, 1, 3)}, "40 tokens after 0 do not fit blocks for 32"),
        ({"block_indices_begins": integers(0, 2, 4)}, "do not divide 3"),
        ({"past_lens": integers(25, 0)}, "40 tokens after 25 do not fit blocks for 64"),
        ({"past_lens": integers(0, -1)}, "3 tokens after -1 do not fit"),
        ({"block_indices": integers(1, 3, 4)}, "a block that is not one of 4"),
        ({"block_indices": integers(1, -3, 2)}, "a block that is not one of 4"),
        ({"value": np.ones((42, HEADS * SIZE), np.float32)}, "queries, keys and values have the shapes"),
    ],
)
def test_a_step_beyond_its_inputs_is_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(RuntimeError, match=problem):
        attend(**changed)


def test_rows_without_numbers_are_not_multiplied() -> None:
    weight = np.ones((16, 32), np.float32)
    x = parameter("x", [-1, -1], ov.Type.f32)
    model = ov.Model([ops.result(own_product(x, quantize_int8(weight)))], [x])
    with pytest.raises(RuntimeError, match=r"rows of the shape \[3,0\] have no numbers"):
        infer(model, {"x": np.ones((3, 0), np.float32)})
