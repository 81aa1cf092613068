"""Tests of our exports and commands with upstream's own builder, where its source tree is at hand.

``DRAFTPROOF_TENSORRT_LLM_SOURCE`` names the tree: the folder that holds the package ``tensorrt_llm``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build import quantize
from build.checkpoints.tokenizer_file import load_tokenizer
from build.recipe import REPOSITORY_ROOT, load_recipe
from build.reference import load_reference
from build.tensorrt_llm.command import Paths, build_command
from build.tensorrt_llm.pair import read_pair
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face, pair_recipe
from tests.support.modelopt_in_process import run_in_process, worker

SOURCE = os.environ.get("DRAFTPROOF_TENSORRT_LLM_SOURCE", "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not SOURCE, reason="DRAFTPROOF_TENSORRT_LLM_SOURCE names no source of TensorRT-LLM"),
    pytest.mark.filterwarnings("ignore"),  # of transformers and ModelOpt
]

RECIPES = sorted(
    path.stem
    for path in (REPOSITORY_ROOT / "build" / "recipes").glob("*.yaml")
    if load_recipe(path.stem).runtime == "tensorrt_llm"
)
SERVING = {"max_batch_size": 8, "max_seq_len": 256, "max_num_tokens": 512, "max_draft_len": 4}
LLAMA3 = {
    **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    **{"original_max_position_embeddings": 64},
}


def token_ids(source: Path) -> Any:
    """Return a text like the one that quantization was calibrated with."""
    encode = load_tokenizer((source / "tokenizer.json").read_text(encoding="utf-8")).encode
    return np.array(encode("def add(first, second):\n    return first + second\n" * 4).ids[:40], np.int32)


def source_of(folder: Path, family: str) -> Path:
    """Write a checkpoint of a family; positions of Llama are scaled as in Llama 3.1."""
    directory = make_hugging_face(folder / family, family)
    if family == "llama":
        rope = {"rope_theta": 5e5, "rope_scaling": LLAMA3, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}}
        change_config(directory, **rope)
    return directory


def builds(
    folder: Path, source: Path, quantization: str, section: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    """Quantize a pair, and run our commands through upstream's builder; returns the engines by role."""
    worker()
    engine = {"checkpoint": str(source), "quantization": quantization, "tensorrt_llm": section}
    recipe = pair_recipe(folder, engine, engine, runtime="tensorrt_llm", serving=SERVING)
    monkeypatch.setattr(quantize, "_run_worker", run_in_process)
    quantize.quantize_recipe(recipe, folder / "engines", str)
    pair = read_pair(recipe, folder / "engines")
    np.save(folder / "ids.npy", token_ids(source))
    found, commands = {}, []
    for side in pair.sides:
        assert side.checkpoint is not None
        found[side.role] = folder / side.role
        paths = Paths(side.checkpoint, found[side.role], None, folder / "timing")
        commands.append(build_command(pair, side, paths)[1:])
    (folder / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    command = [sys.executable, "-m", "tests.upstream_builder.run", SOURCE]
    command += [str(folder / name) for name in ("ids.npy", "commands.json")]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return found


def error_of(logits: Path, source: Path) -> float:
    """Return the relative error of logits beside transformers on the source."""
    import torch

    model = load_reference(dataclasses.replace(load_recipe("demo").target, checkpoint=str(source)))
    with torch.no_grad():
        expected = model(torch.from_numpy(token_ids(source)[None]).long()).logits[0].numpy()
    found = np.load(logits)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("quantization", "most"), [("none", 2e-3), ("int8", 0.05), ("int8_sq", 0.2), ("fp8", 0.3)]
)
def test_upstreams_network_computes_what_transformers_does(
    family: str, quantization: str, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(tmp_path, family)
    for engine in builds(tmp_path, source, quantization, {}, monkeypatch).values():
        assert error_of(engine / "logits.npy", source) < most


@pytest.mark.parametrize("name", RECIPES)
def test_upstream_builds_each_recipe_with_tiny_networks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = load_recipe(name).target
    section = dataclasses.asdict(target.tensorrt_llm)
    section["tp_size"] = min(2, section["tp_size"])
    family = "llama" if "llama" in name else "qwen3" if "qwen3" in name else "qwen2"
    engines = builds(tmp_path, source_of(tmp_path, family), target.quantization, section, monkeypatch)
    for role, engine in engines.items():
        config = json.loads((engine / "config.json").read_text(encoding="utf-8"))["build_config"]
        assert config["max_draft_len"] == (SERVING["max_draft_len"] if role == "target" else 0)
        assert config["kv_cache_type"] == "paged" and config["plugin_config"]["use_paged_context_fmha"]


@pytest.mark.parametrize("quantization", ["int4_awq", "w4a8_awq"])
def test_upstream_builds_four_bits(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert builds(tmp_path, source_of(tmp_path, "llama"), quantization, {}, monkeypatch)


def test_a_swap_of_two_projections_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, other = source_of(tmp_path, "llama"), source_of(tmp_path / "swapped", "llama")
    from tests.support.hugging_face_checkpoints import change_weights

    def swap(tensors: dict[str, Any]) -> None:
        gate, up = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
        tensors[gate], tensors[up] = tensors[up], tensors[gate]

    change_weights(other, swap)
    assert error_of(builds(tmp_path, other, "none", {}, monkeypatch)["target"] / "logits.npy", source) > 0.05
