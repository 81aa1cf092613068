"""Tests of attention and products in a graph of OpenVINO: what they refuse instead of reading beyond it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
import yaml
from openvino import opset15 as ops

from benchmarks.quality.engines import compile_network
from build.engines import build_engines
from build.networks.source import open_network
from build.networks.weight_only import quantize_int8
from build.openvino.operations import parameter
from build.openvino.own_operators import OwnAttention, own_product
from build.openvino.paged_attention import network_inputs
from build.own_pair import write_recipe
from build.preflight import check_recipe
from build.recipe import load_recipe, parse_recipe
from pipelines.errors import EngineBuildError, RecipeError
from pipelines.executor.step import Chunk, pack
from tests.golden.families import save_family
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import make_hugging_face
from tests.support.network_engines import count_rows_differing, decoded_rows

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


IDS = np.random.default_rng(1).integers(0, 448, 150).astype(np.int32)
NUM_PROMPT = 100  # more than the windows


@needs_compiler
@pytest.mark.parametrize("kv_cache_dtype", ["float16", "int8"])
def test_every_type_of_cache_keeps_the_row_rule(kv_cache_dtype: str, tmp_path: Path) -> None:
    save_family("gemma2", tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    exact = compile_network(tmp_path / "exact", network, "none", "draftproof")
    engine = compile_network(tmp_path / "engine", network, "none", "draftproof", kv_cache_dtype)
    assert count_rows_differing(engine, IDS) == 0
    expected = decoded_rows(exact, IDS, NUM_PROMPT, 5)
    found = decoded_rows(engine, IDS, NUM_PROMPT, 5)
    assert 0 < np.abs(found - expected).max() < 1  # of logits up to 30


def gemma_pair(folder: Path, draft: str = "gemma2") -> tuple[str, str]:
    target = make_hugging_face(folder / "target", "gemma2")
    return str(target), str(make_hugging_face(folder / "draft", draft, seed=1))


@pytest.mark.parametrize(
    ("attention", "refused"),
    [
        ({}, "draft"),
        ({"draft": "draftproof"}, "target"),
        ({"target": "draftproof"}, "draft"),
        ({"target": "draftproof", "draft": "draftproof"}, None),
    ],
)
def test_a_recipe_with_openvinos_attention_is_refused_before_the_build(
    attention: dict[str, str], refused: str | None, tmp_path: Path
) -> None:
    raw: dict[str, Any] = {"name": "gemma", "serving": {"max_seq_len": 512}}
    for role, checkpoint in zip(("target", "draft"), gemma_pair(tmp_path), strict=True):
        raw[role] = {"checkpoint": checkpoint, "attention": attention.get(role, "openvino")}
    recipe = parse_recipe(raw, tmp_path / "gemma.yaml")
    if refused is None:
        check_recipe(recipe, tmp_path)
        return
    with pytest.raises(RecipeError, match=f"OpenVINO's attention cannot compute the {refused}") as caught:
        check_recipe(recipe, tmp_path)
    assert "which has attention scores that are capped" in caught.value.message
    assert "attn_logit_softcapping=50" in caught.value.message
    assert "'attention: draftproof'" in caught.value.remedy


@needs_compiler
@pytest.mark.parametrize("draft", ["gemma2", "llama"])
def test_a_recipe_that_is_written_has_the_attention_that_each_network_needs(
    draft: str, tmp_path: Path
) -> None:
    lines = list[str]()
    path = write_recipe(
        *gemma_pair(tmp_path, draft), tmp_path / "gemma.yaml", "int8", 512, 20e9, lines.append
    )
    roles = ["target", "draft"] if draft == "gemma2" else ["target"]
    assert [line.partition(":")[0] for line in lines if "'attention: draftproof' is set" in line] == roles
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [role for role in ("target", "draft") if written[role].get("attention")] == roles
    built = build_engines(load_recipe(path), tmp_path / "engines", lambda line: None)
    for role in ("target", "draft"):
        engine = json.loads((Path(built[role]) / "engine.json").read_text(encoding="utf-8"))
        assert (engine["attention"] == "draftproof") == (role in roles)


def test_a_machine_without_a_compiler_gets_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = gemma_pair(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineBuildError, match=r"g\+\+ is not on the PATH"):
        write_recipe(*pair, tmp_path / "gemma.yaml", "int8", 512, 20e9, lambda line: None)
    assert not (tmp_path / "gemma.yaml").exists()
