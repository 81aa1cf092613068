"""Tests that the models written for other engines compute what our own engine computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.peer_models.stateful_graph import build_stateful_graph
from build.hugging_face.write import write_hugging_face
from build.networks.network import Network
from build.networks.weight_only import apply_quantization
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
