"""Tests of the recurrence in a graph of OpenVINO: beside transformers, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset15 as ops
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from build.networks.recurrent import RecurrentSizes, RecurrentWeights
from build.openvino.operations import parameter
from build.openvino.own_recurrence import OwnRecurrence
from build.operators.library import compiled_library
from pipelines.errors import EngineBuildError
from tests.support.compiler import needs_compiler
from tests.unit.build.operators.recurrence.kernel import (
    EPSILON,
    Floats,
    Piece,
    draw_rows,
    draw_weights,
    step_inputs,
)

pytestmark = needs_compiler

SIZES = RecurrentSizes(num_key_heads=2, num_value_heads=4, key_size=32, value_size=64)
NUM_SLOTS, NUM_LOG_ROWS = 3, 4


def graph(weights: RecurrentWeights, sizes: RecurrentSizes = SIZES, width: int = SIZES.width) -> ov.Model:
    own = OwnRecurrence(sizes, EPSILON)
    tables = own.tables(0)
    inputs = {
        name: parameter(name, [-1], ov.Type.i32) for name in ("past_lens", "subsequence_begins", "slots")
    }
    projected = parameter("projected", [-1, 1, width], ov.Type.f32)
    output = own.recur(projected, weights, list(tables.values()), inputs)
    return ov.Model([ops.result(output)], [projected, *tables.values(), *inputs.values()], "recurrence")


class Layer:
    """A compiled graph with its tables."""

    def __init__(self, model: ov.Model, num_threads: int = 1, core: ov.Core | None = None) -> None:
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(num_threads)}
        self._compiled = (core or ov.Core()).compile_model(model, "CPU", settings)
        self._request = self._compiled.create_infer_request()
        own = OwnRecurrence(SIZES, EPSILON)
        self.states = np.full((NUM_SLOTS, own.state_bytes), 255, np.uint8)
        self.logs = np.full((NUM_SLOTS, NUM_LOG_ROWS, own.log_bytes), 255, np.uint8)
        for name, table in (("state.0", self.states), ("state_log.0", self.logs)):
            self._request.set_tensor(name, ov.Tensor(table, shared_memory=True))

    def step(self, *pieces: Piece, **changed: Any) -> list[Floats]:
        """Return the outputs of each piece; ``infer`` would hide that an operation failed."""
        projected = np.concatenate([piece.rows for piece in pieces])[:, np.newaxis]
        for name, array in {"projected": projected, **step_inputs(pieces), **changed}.items():
            self._request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))
        self._request.start_async()
        self._request.wait()
        outputs = self._request.get_output_tensor(0).data[:, 0].copy()
        return np.split(outputs, np.cumsum([len(piece.rows) for piece in pieces])[:-1])


@pytest.fixture(scope="module")
def weights() -> RecurrentWeights:
    return draw_weights(SIZES, np.random.default_rng(0))


def rows_of(count: int, seed: int = 0) -> Floats:
    return draw_rows(SIZES, count, np.random.default_rng(seed))


def test_a_layer_is_that_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recurrent form for a whole prompt, because the chunked one adds in another order."""
    monkeypatch.setattr(qwen3_5, "FusedRMSNormGated", None)
    config = Qwen3_5TextConfig(
        hidden_size=48,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=SIZES.num_key_heads,
        linear_num_value_heads=SIZES.num_value_heads,
        linear_key_head_dim=SIZES.key_size,
        linear_value_head_dim=SIZES.value_size,
        rms_norm_eps=EPSILON,
    )
    torch.manual_seed(0)
    net = qwen3_5.Qwen3_5GatedDeltaNet(config, 0).float()
    net.causal_conv1d_fn = None
    net.chunk_gated_delta_rule = lambda *arguments, cu_seqlens=None, **others: (
        qwen3_5.torch_recurrent_gated_delta_rule(*arguments, **others)
    )
    net.out_proj = torch.nn.Identity()
    projections = (net.in_proj_qkv, net.in_proj_z, net.in_proj_b, net.in_proj_a)
    with torch.no_grad():
        net.norm.weight.uniform_(0.5, 1.5)
        net.dt_bias.uniform_(-3, 1)
        hidden = 20 * torch.randn(1, 40, config.hidden_size)
        expected = net(hidden)[0].numpy()
        projected = torch.cat([each(hidden) for each in projections], 2)[0].numpy()
        weights = RecurrentWeights(
            convolution=np.ascontiguousarray(net.conv1d.weight[:, 0].T.numpy()),
            rates=net.A_log.exp().numpy(),
            biases=net.dt_bias.numpy(),
            norm=net.norm.weight.numpy(),
        )
    found = Layer(graph(weights)).step(Piece(projected, 0, 1, as_rows=False))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_a_saved_graph_changes_its_tables_in_place(
    weights: RecurrentWeights, tmp_path: Path, num_threads: int
) -> None:
    ov.save_model(graph(weights), tmp_path / "graph.xml", compress_to_fp16=False)
    (tmp_path / "operators.so").write_bytes(compiled_library())
    core = ov.Core()
    core.add_extension(tmp_path / "operators.so")
    layer = Layer(core.read_model(tmp_path / "graph.xml"), num_threads, core)
    rows = rows_of(12)
    expected = Layer(graph(weights)).step(Piece(rows, 0, 0, as_rows=False))[0]
    found = [
        layer.step(Piece(rows[:5], 0, 2, as_rows=False), Piece(rows_of(3, 1), 0, 0, as_rows=False))[0],
        layer.step(Piece(rows_of(1, 2), 3, 0, as_rows=True), Piece(rows[5:9], 5, 2, as_rows=True))[1][:2],
        layer.step(Piece(rows[7:], 7, 2, as_rows=False), Piece(rows_of(2, 3), 0, -1, as_rows=True))[0],
    ]
    assert np.array_equal(np.concatenate(found), expected)
    assert (layer.states[1] == 255).all()


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (
            Piece(rows_of(1), 9, 0, as_rows=True),
            "9 tokens come before, but it has a state of 5 and a log of 3",
        ),
        (Piece(rows_of(1), 4, 0, as_rows=True), "4 tokens come before, but it has a state of 5"),
        (Piece(rows_of(2), 4, 1, as_rows=False), "4 tokens come before"),
        (Piece(rows_of(NUM_LOG_ROWS + 1), 5, 0, as_rows=True), "5 rows do not fit a log of 4"),
        (Piece(rows_of(1), 0, NUM_SLOTS, as_rows=True), "there are 3"),
    ],
    ids=[
        "more than were logged",
        "fewer than were kept",
        "a slot never used",
        "too many rows",
        "no such slot",
    ],
)
def test_a_step_that_does_not_follow_its_slot_changes_nothing(
    weights: RecurrentWeights, piece: Piece, problem: str
) -> None:
    layer = Layer(graph(weights))
    layer.step(Piece(rows_of(5), 0, 0, as_rows=False))
    rows = rows_of(3, 1)
    expected = layer.step(Piece(rows, 5, 0, as_rows=True))[0]
    tables = layer.states.copy(), layer.logs.copy()
    with pytest.raises(RuntimeError, match=problem):
        layer.step(Piece(rows_of(2, 2), 0, 2, as_rows=False), piece)
    assert np.array_equal(layer.states, tables[0])
    assert np.array_equal(layer.logs, tables[1])
    assert np.array_equal(layer.step(Piece(rows, 5, 0, as_rows=True))[0], expected)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"slots": np.array([0, 1, 0], np.int32)}, "two requests have it"),
        ({"slots": np.zeros(3, np.int32)}, "do not follow each other"),
        ({"slots": np.zeros(2, np.int32)}, "3 sequences have 2 slots"),
        ({"subsequence_begins": np.array([0, 1, 3], np.int32)}, "3 sequences have 3 begins"),
        (
            {"slots": np.array([0, 1, 1], np.int32), "subsequence_begins": np.array([0, 0, 2, 3], np.int32)},
            "a chunk is a request's only sequence",
        ),
    ],
)
def test_a_step_that_mixes_requests_is_refused(
    weights: RecurrentWeights, changed: dict[str, Any], problem: str
) -> None:
    pieces = [Piece(rows_of(1), 0, slot, as_rows=True) for slot in range(3)]
    with pytest.raises(RuntimeError, match=problem):
        Layer(graph(weights)).step(*pieces, **changed)


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("convolution", (4, SIZES.channels - 1), r"input 1 has the shape \[4,383\], not \[4,384\]"),
        ("convolution", (3, SIZES.channels), "input 1 has the shape"),
        ("norm", (SIZES.value_size + 1,), "input 3 has the shape"),
    ],
)
def test_weights_of_other_shapes_are_refused_when_the_graph_is_made(
    weights: RecurrentWeights, name: str, shape: tuple[int, ...], problem: str
) -> None:
    wrong = RecurrentWeights(**{**vars(weights), name: np.ones(shape, np.float32)})
    with pytest.raises(RuntimeError, match=problem):
        graph(wrong)


def test_gates_of_other_heads_are_refused_when_the_graph_is_made(weights: RecurrentWeights) -> None:
    ones = np.ones(3, np.float32)
    with pytest.raises(RuntimeError, match="input 2 has the shape"):
        graph(RecurrentWeights(weights.convolution, ones, ones, weights.norm))


def test_rows_of_another_width_are_refused_when_the_graph_is_made(weights: RecurrentWeights) -> None:
    with pytest.raises(RuntimeError, match="a row has 647 numbers, not 648"):
        graph(weights, width=SIZES.width - 1)


@pytest.mark.parametrize(
    "sizes",
    [RecurrentSizes(2, 3, 32, 64), RecurrentSizes(2, 4, 24, 64), RecurrentSizes(2, 4, 32, 48)],
    ids=["heads", "keys", "values"],
)
def test_sizes_that_the_kernel_does_not_know_are_refused(sizes: RecurrentSizes) -> None:
    with pytest.raises(EngineBuildError, match="keys of a multiple of 16, values of a multiple of 32"):
        OwnRecurrence(sizes, EPSILON)
