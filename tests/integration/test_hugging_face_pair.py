"""Tests that ``verify --reference`` finds what no comparison of a pair with itself can find."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from build.checkpoints.tensor_file import Tensor
from build.engines import build_engines
from build.recipe import load_recipe
from build.repository import render_recipe
from pipelines.command_line.running_server import known_key
from pipelines.validation.__main__ import main as verify
from tests.support.family_networks import save_model
from tests.support.hugging_face_checkpoints import change_weights
from tests.support.ready_server import ready_server
from tests.support.trained_tokenizers import sentencepiece_bpe

pytestmark = [
    *(pytest.mark.triton, pytest.mark.long),
    pytest.mark.filterwarnings("ignore"),  # warnings of transformers
]


def test_a_wrong_target_passes_the_proof_and_fails_beside_transformers(tmp_path: Path) -> None:
    """Draft, speculation and target alone share the mistake: gate and up are swapped in what is compiled."""
    pytest.importorskip("transformers")
    path = tmp_path / "right.yaml"
    for role, layers in (("target", 4), ("draft", 2)):
        save_model("qwen3", tmp_path / role, num_hidden_layers=layers)
        sentencepiece_bpe().save(str(tmp_path / role / "tokenizer.json"))
    section = {"checkpoint": str(tmp_path / "target"), "quantization": "none", "num_threads": 1}
    serving = {"max_batch_size": 8, "max_seq_len": 512, "num_draft_tokens": 4}
    recipe = {"name": "hf", "target": section, "draft": {**section, "checkpoint": str(tmp_path / "draft")}}
    path.write_text(yaml.safe_dump({**recipe, "serving": serving}), encoding="utf-8")
    shutil.copytree(tmp_path / "target", tmp_path / "swapped")
    change_weights(tmp_path / "swapped", swap_gate_and_up)
    for target, expected in (("swapped", 1), ("target", 0)):
        built = replace(load_recipe(path).target, checkpoint=str(tmp_path / target))
        pair = replace(load_recipe(path), target=built)
        engines = build_engines(pair, tmp_path / "engines")
        folders = Path(engines["draft"]), Path(engines["target"])
        run = render_recipe(pair, *folders, tmp_path / target).parent
        with ready_server(run) as server, known_key(run):
            url, page = f"grpc://127.0.0.1:{server.ports.grpc}", str(tmp_path / "page.html")
            asked = ["--recipe", str(path), "--url", url, "--html", page]
            if target == "swapped":
                size = "--num-prompts", "300", "--max-tokens", "8"
                assert verify([*asked, "--only", "equality", *size]) == 0
            assert verify([*asked, "--reference"]) == expected


def swap_gate_and_up(tensors: dict[str, Tensor]) -> None:
    gate, up = (f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up"))
    tensors[gate], tensors[up] = tensors[up], tensors[gate]
