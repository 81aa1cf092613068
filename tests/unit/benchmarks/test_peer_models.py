"""Tests that the models written for other engines compute what our own engine computes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import yaml

from benchmarks.peer_models.__main__ import build_peer_models
from benchmarks.peer_models.stateful_graph import build_stateful_graph
from build.hugging_face.write import write_hugging_face
from build.networks.network import Network
from build.networks.weight_only import apply_quantization
from build.recipe import load_recipe
from tests.support.checkpoints import LLAMA3_SCALING, make_checkpoint
from tests.unit.build.test_openvino_engine import EXACT, engine_of, largest_error, run, token_ids

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.long]

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "untied": {"share_embedding_table": False},
    "llama3 rope": {"rotary_base": 500000.0, "rotary_scaling": LLAMA3_SCALING},
    "linear rope": {"rotary_scaling": {"type": "linear", "factor": 4.0}},
}
END_ID = 0


def network_of(directory: Path, algo: str | None = None, **changes: Any) -> Network:
    # float32, so that quantized projections are dequantized exactly.
    return make_checkpoint(directory / "checkpoint", algo, dtype="float32", **changes)


def stateful_logits(model: Any, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the logits of a text, one token at a time."""
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    }
    compiled = ov.Core().compile_model(model, "CPU", properties)
    request = compiled.create_infer_request()
    rows = []
    for position, token in enumerate(tokens):
        inputs = {
            "input_ids": np.array([[token]], np.int64),
            "attention_mask": np.ones((1, position + 1), np.int64),
            "position_ids": np.array([[position]], np.int64),
            "beam_idx": np.zeros(1, np.int32),
        }
        rows.append(request.infer(inputs)["logits"][0].copy())
    return np.concatenate(rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # warnings of torch and transformers are not ours to fix
@pytest.mark.parametrize(("algo", "shape"), [(None, "llama3 rope"), ("W8A16", "untied"), ("FP8", "gqa")])
def test_the_hugging_face_checkpoint_has_our_engines_logits(
    algo: str | None, shape: str, tmp_path: Path
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    network = apply_quantization(network_of(tmp_path, algo, **SHAPES[shape]), "none", "checkpoint")
    folder = tmp_path / "hugging_face"
    write_hugging_face(folder, network, tmp_path / "checkpoint" / "tokenizer.json", [END_ID])
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        theirs = model(torch.tensor(token_ids()[None].astype(np.int64))).logits[0].numpy()
    ours = run(engine_of(tmp_path, network), token_ids())
    assert largest_error(theirs, ours) < EXACT
    assert (theirs.argmax(1) == ours.argmax(1)).all()
    assert model.generation_config.eos_token_id == END_ID
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("the text").input_ids) == "the text"
    assert tokenizer.eos_token_id == END_ID


@pytest.mark.parametrize(("shape", "quantization"), [*((shape, "none") for shape in SHAPES), ("gqa", "int8")])
def test_the_stateful_graph_has_our_engines_logits(shape: str, quantization: str, tmp_path: Path) -> None:
    head = "int8" if quantization == "int8" else "checkpoint"
    network = apply_quantization(network_of(tmp_path, **SHAPES[shape]), quantization, head)
    ours = run(engine_of(tmp_path, network), token_ids())
    assert largest_error(ours, stateful_logits(build_stateful_graph(network), token_ids())) < EXACT


@pytest.mark.parametrize("shape", ["gqa", "mha"])
def test_the_pass_of_genai_finds_its_pattern(shape: str, tmp_path: Path) -> None:
    from openvino._offline_transformations import paged_attention_transformation

    model = build_stateful_graph(network_of(tmp_path, **SHAPES[shape]))
    paged_attention_transformation(model)
    kinds = Counter(node.get_type_name() for node in model.get_ops())
    assert kinds["PagedAttentionExtension"] == 2
    assert kinds["ReadValue"] == kinds["Assign"] == kinds["ScaledDotProductAttention"] == 0
    shapes = {
        name: parameter.partial_shape.rank.get_length()
        for parameter in model.inputs
        for name in parameter.names
    }
    assert len(shapes) == len(model.inputs)  # a parameter that was not found exists twice
    assert (shapes["input_ids"], shapes["position_ids"]) == (1, 1)
    assert "beam_idx" not in shapes and "attention_mask" not in shapes


def test_the_models_of_a_recipe_are_written_once_and_whole(tmp_path: Path) -> None:
    for role, layers in (("target", 2), ("draft", 1)):
        make_checkpoint(tmp_path / role, num_hidden_layers=layers)
    growth = {"num_layers": 3, "intermediate_size": 512}
    raw = {
        "name": "tiny",
        "target": {"checkpoint": str(tmp_path / "target"), "growth": growth},
        "draft": {"checkpoint": str(tmp_path / "draft")},
        "serving": {"max_seq_len": 256},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    lines: list[str] = []
    output = tmp_path / "models"
    folders = (output, tmp_path / "engines")
    document = build_peer_models(load_recipe(str(path)), *folders, lines.append)
    assert document == json.loads((output / "models.json").read_text(encoding="utf-8"))
    assert (document["max_seq_len"], document["num_threads"]) == (256, 2)
    assert document["compile_properties"]["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "128"
    for role, layers in (("target", 3), ("draft", 1)):
        assert set(document[role]) == {"openvino"}
        for folder in document[role].values():
            config = json.loads((output / folder / "config.json").read_text(encoding="utf-8"))
            assert config["num_hidden_layers"] == layers
            assert (output / folder / "tokenizer.json").is_file()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    lines.clear()
    assert build_peer_models(load_recipe(str(path)), *folders, lines.append) == document
    assert lines[-1].endswith("is up to date")
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()} == before
