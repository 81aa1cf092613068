"""Tests of failures while quantizing, and of the command as users type it: messages, remaining files."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import build.quantize as quantize
from build.checkpoints.tensor_file import Tensor, read_tensors, write_tensors
from build.networks.source import open_network
from build.recipe import Recipe, load_recipe
from pipelines.errors import CheckpointError, IncompatiblePairError
from tests.conftest import REPOSITORY_ROOT
from tests.support.hugging_face_checkpoints import change_weights, make_hugging_face, pair_recipe
from tests.support.modelopt_in_process import made, run_in_process, worker

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.long]  # real ModelOpt


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("modelopt") is None:
        pytest.skip("nvidia-modelopt is not installed (requirements/build.txt)")
    return make_hugging_face(tmp_path_factory.mktemp("source") / "llama")


def run_and_spoil(name: str, plan: Any, order: dict[str, Any], work: Path, report: Any) -> None:
    """The worker, and zeros in one tensor of what it exported."""
    run_in_process(plan, order, work, report)
    path = Path(order["output"]) / "rank0.safetensors"
    tensors = dict(read_tensors(path))
    tensors[name] = Tensor(tensors[name].dtype, tensors[name].shape, np.zeros_like(tensors[name].data))
    write_tensors(path.with_name("changed"), tensors)
    path.with_name("changed").replace(path)


def run_and_drop(name: str, plan: Any, order: dict[str, Any], work: Path, report: Any) -> None:
    """The worker, and one tensor less in what it exported."""
    run_in_process(plan, order, work, report)
    path = Path(order["output"]) / "rank0.safetensors"
    kept = {key: tensor for key, tensor in read_tensors(path).items() if key != name}
    write_tensors(path.with_name("changed"), kept)
    path.with_name("changed").replace(path)


@pytest.mark.parametrize(
    ("model_type", "name", "told"),
    [
        ("llama", "transformer.layers.1.mlp.proj.weight", r"layer 1 mlp\.proj"),
        ("llama", "transformer.layers.1.post_layernorm.weight", r"layers\.1\.post_layernorm"),
        ("llama", "transformer.ln_f.weight", "ln_f"),
        ("llama", "transformer.vocab_embedding.weight", "vocab_embedding"),
        ("llama", "lm_head.weight", "lm_head"),
        ("qwen3", "transformer.layers.1.attention.q_layernorm.weight", r"layers\.1\.attention\.q_layernorm"),
        ("qwen2", "transformer.layers.1.attention.qkv.bias", r"layer 1 attention\.qkv\.bias"),
    ],
)
def test_weights_that_came_out_wrong_are_not_moved_into_place(
    model_type: str, name: str, told: str, tmp_path: Path
) -> None:
    source = make_hugging_face(tmp_path / model_type, model_type)
    with pytest.raises(CheckpointError, match=told) as caught:
        made(tmp_path, source, "fp8", partial(run_and_spoil, name))
    assert "relative error" in caught.value.message and caught.value.remedy
    assert [path.name for path in (tmp_path / "engines/tiny/checkpoints").iterdir()] == [".lock"]


def forget_a_merge(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["merges"].pop()


@pytest.mark.parametrize(
    ("runtime", "file", "change", "told"),
    [
        ("embedded", "config.json", lambda config: config.update(max_position_embeddings=128), "context is"),
        ("tensorrt_llm", "tokenizer.json", forget_a_merge, "tokenizer"),
    ],
)
def test_a_pair_that_is_none_is_refused_before_anything_is_quantized(
    runtime: str,
    file: str,
    change: Callable[[dict[str, Any]], None],
    told: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = Path(shutil.copytree(source, tmp_path / "other"))
    document = json.loads((other / file).read_text(encoding="utf-8"))
    change(document)
    (other / file).write_text(json.dumps(document), encoding="utf-8")
    sections = ({"checkpoint": str(path), "quantization": "fp8"} for path in (source, other))
    monkeypatch.setattr(quantize, "_make", lambda *_: pytest.fail("hours of quantizing"))
    with pytest.raises(IncompatiblePairError, match=told):
        quantize.quantize_recipe(pair_recipe(tmp_path, *sections, runtime=runtime), tmp_path / "engines")


def test_what_preflight_would_refuse_is_not_quantized(source: Path, tmp_path: Path) -> None:
    section = {"checkpoint": str(source), "quantization": "fp8", "tensorrt_llm": {"tp_size": 3}}
    with pytest.raises(IncompatiblePairError, match=r"split .*tp_size=3, num_attention_heads=4"):
        recipe = pair_recipe(tmp_path, section, section, runtime="tensorrt_llm")
        quantize.quantize_recipe(recipe, tmp_path / "engines")


def test_norms_that_the_export_drops(tmp_path: Path) -> None:
    source = make_hugging_face(tmp_path / "qwen", "qwen3")
    name = "transformer.layers.0.attention.k_layernorm.weight"
    with pytest.raises(CheckpointError, match=r"export to .* is incomplete") as caught:
        made(tmp_path, source, "none", partial(run_and_drop, name))
    assert name in caught.value.message


def test_a_tensor_that_the_export_does_not_know(tmp_path: Path) -> None:
    source = make_hugging_face(tmp_path / "llama")
    name = "model.layers.0.self_attn.q_norm.weight"

    def add(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"]  # is computed

    change_weights(source, add)
    with pytest.raises(CheckpointError, match="leaves out tensors of the source") as caught:
        made(tmp_path, source, "none")
    assert caught.value.message.endswith(name) and caught.value.remedy


def test_a_config_without_rotary_settings_is_not_moved_into_place(source: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker(), "_restore_rotary_settings", lambda config: None)
        with pytest.raises(CheckpointError, match="rotary_base=None"):
            made(tmp_path, source, "none")
    assert [path.name for path in (tmp_path / "engines/tiny/checkpoints").iterdir()] == [".lock"]


@pytest.mark.parametrize("stage", ["worker", "write_manifest", "compare"])
def test_a_full_disk_leaves_nothing(stage: str, source: Path, tmp_path: Path) -> None:
    def full(*arguments: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        if stage != "worker":
            patch.setattr(quantize, stage, full)
        with pytest.raises(CheckpointError, match="No space left") as caught:
            made(tmp_path, source, "none", full if stage == "worker" else run_in_process)
    assert caught.value.message and caught.value.remedy
    assert [path.name for path in (tmp_path / "engines/tiny/checkpoints").iterdir()] == [".lock"]


def test_a_source_that_changes_meanwhile_is_noticed(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)

    def changing(plan: Any, order: dict[str, Any], work: Path, report: Any) -> None:
        run_in_process(plan, order, work, report)
        with (copy / "config.json").open("a") as file:
            file.write("\n")

    with pytest.raises(CheckpointError, match="changed while it was quantized"):
        made(tmp_path, copy, "none", changing)


def test_nan_is_refused_before_any_calibration(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"].data[0] = np.nan

    change_weights(copy, spoil)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        made(tmp_path, copy, "fp8")


def absent(name: str) -> str:
    raise quantize.importlib.metadata.PackageNotFoundError(name)


@pytest.mark.parametrize(
    ("version", "message"), [(lambda name: "0.37.0", "only the output of"), (absent, "make modelopt")]
)
def test_another_version_of_modelopt_or_none_is_refused(
    version: Callable[[str], str], message: str, source: Path, tmp_path: Path
) -> None:
    worker()  # its libraries ask for versions when they are imported
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize.importlib.metadata, "version", version)
        with pytest.raises(CheckpointError, match=message):
            made(tmp_path, source, "none")


def test_the_recipes_of_the_repository_need_no_quantizing(tmp_path: Path) -> None:
    recipe = load_recipe("demo")
    found = quantize.quantize_recipe(recipe, tmp_path / "engines", lambda line: None)
    assert found["target"] == recipe.target.checkpoint_directory() and not (tmp_path / "engines").exists()


def run(recipe: Recipe, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipelines", "quantize", "--recipe", str(recipe.path)]
    command += ["--engines", str(folder / "engines")]
    return subprocess.run(
        command,
        cwd=REPOSITORY_ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_last_line_is_json_and_progress_is_shown(source: Path, tmp_path: Path) -> None:
    recipe = pair_recipe(
        tmp_path,
        {"checkpoint": str(source.with_name("llama-made"))},  # in TensorRT-LLM's format
        {"checkpoint": str(source), "quantization": "fp8"},
    )
    done = run(recipe, tmp_path)
    assert done.returncode == 0, done.stderr
    *progress, last = done.stdout.splitlines()
    found = json.loads(last)
    assert found["draft"] == str(source.with_name("llama-made")) and found["seconds"] > 0
    assert open_network(Path(found["target"])).read().config.quant_algo == "FP8"
    assert any("512 of 512 tokens" in line for line in progress), progress
    assert (Path(found["target"]).parent / "target.log").is_file()


def test_a_worker_that_dies_is_explained(source: Path, tmp_path: Path) -> None:
    (tmp_path / "broken" / "modelopt").mkdir(parents=True)
    (tmp_path / "broken" / "modelopt" / "__init__.py").write_text("raise ImportError('half installed')")
    section = {"checkpoint": str(source), "quantization": "fp8"}
    done = run(pair_recipe(tmp_path, section, section), tmp_path, PYTHONPATH=str(tmp_path / "broken"))
    assert done.returncode == 1 and "ModelOpt could not quantize the draft" in done.stderr
    assert "Traceback" not in done.stderr and "draft.log" in done.stderr
    assert "half installed" in done.stderr
    folder = tmp_path / "engines" / "tiny" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "draft.log"]
