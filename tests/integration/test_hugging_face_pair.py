"""Tests of a pair that comes as two Hugging Face directories: compiled without torch, served, exact."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from build.checkpoints.tensor_file import Tensor
from build.engines import build_engines
from build.recipe import load_recipe
from build.repository import render_recipe
from pipelines.client import CompletionRequest
from pipelines.command_line.running_server import known_key
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.validation.__main__ import main as verify
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import grpc_client, target_alone
from tests.support.compiler import needs_compiler
from tests.support.family_networks import save_model
from tests.support.hugging_face_checkpoints import change_weights
from tests.support.quantized_checkpoints import GROUP, pack_awq, quantize_checkpoint
from tests.support.ready_server import ready_server
from tests.support.trained_tokenizers import sentencepiece_bpe

# By day tests/unit/build/test_hugging_face.py compiles such directories, and test_download.py by the command.
pytestmark = [
    *(pytest.mark.triton, pytest.mark.long),
    pytest.mark.filterwarnings("ignore"),  # warnings of transformers
]

BUILD = """
import sys

for name in ("torch", "transformers", "modelopt"):
    sys.modules[name] = None  # importing it fails
from build.engines import main

sys.exit(main(sys.argv[1:]))
"""


def write_pair(folder: Path, family: str) -> Path:
    """Write target, draft and recipe; the draft has another depth and vocabulary size. Returns the recipe.

    Qwen3's target is published as AWQ. Its head becomes INT8, with inputs that are not rounded.
    """
    save_model(family, folder / "target")
    save_model(family, folder / "draft", num_hidden_layers=2, vocab_size=480)
    for role in ("target", "draft"):
        sentencepiece_bpe().save(str(folder / role / "tokenizer.json"))
    quantization, attention = "int4", "draftproof" if family == "gemma2" else "openvino"
    if family == "qwen3":
        awq = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
        quantize_checkpoint(folder / "target", awq, pack_awq, "lm_head")
        quantization = "checkpoint"
    recipe = {
        "name": "hf",
        "target": {
            **{"checkpoint": str(folder / "target"), "quantization": quantization, "lm_head": "int8"},
            "attention": attention,
        },
        "draft": {"checkpoint": str(folder / "draft"), "attention": attention},
        "serving": {"max_batch_size": 4, "max_seq_len": 512, "num_draft_tokens": 4},
    }
    path = folder / "hf.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "family",
    [
        "qwen3",
        pytest.param("gemma2", marks=needs_compiler),
        "gemma3_text",
    ],
)
def test_two_directories_become_a_server_that_answers_as_the_target(family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = write_pair(tmp_path, family)
    command = [sys.executable, "-c", BUILD, "--recipe", str(path), "--engines", str(tmp_path / "engines")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY_ROOT, check=False)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout.splitlines()[-1])
    assert sorted(built["built"]) == ["draft", "target"]
    engines = Path(built["draft"]), Path(built["target"])
    run = render_recipe(load_recipe(path), *engines, tmp_path / "r").parent
    with Server.start(run, Ports.free()) as server:
        server.wait_ready()
        with grpc_client(server) as client:
            greedy = CompletionRequest("def add(first, second):\n    return", max_tokens=24, end_id=-1)
            sampled = replace(greedy, temperature=0.9, seed=3)
            for request in (greedy, sampled):
                alone = target_alone(client, request)
                answer = client.generate(request)
                assert answer.output_ids == alone.output_ids and answer.text == alone.text
                assert answer.total_draft_tokens > 0
                valid = re.search("[^\N{REPLACEMENT CHARACTER}]+", alone.text)  # the weights are random
                assert valid
                word = valid.group()[:2]
                stopped = client.generate(replace(request, stop_words=(word,)))
                assert stopped.text == alone.text[: alone.text.index(word)]


def test_a_wrong_target_passes_the_proof_and_fails_beside_transformers(
    tmp_path: Path,
) -> None:
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
