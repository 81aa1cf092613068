"""What is left after a failure of quantizing, what is said, and the program as users run it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import build.quantize as quantize
from build.checkpoint import read_checkpoint
from build.recipe import Recipe, load_recipe
from build.tensor_file import Tensor, read_tensors, write_tensors
from pipelines.errors import CheckpointError
from tests.conftest import REPOSITORY_ROOT
from tests.hugging_face_checkpoints import change_weights, make_hugging_face, pair_recipe
from tests.modelopt_in_process import made, run_in_process, worker


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hugging_face(tmp_path_factory.mktemp("source") / "llama")


def test_weights_that_came_out_wrong_are_not_moved_into_place(source: Path, tmp_path: Path) -> None:
    def spoiled(plan: Any, order: dict[str, Any], work: Path, report: Any) -> None:
        run_in_process(plan, order, work, report)
        path = Path(order["output"]) / "rank0.safetensors"
        tensors = dict(read_tensors(path))
        name = "transformer.layers.1.mlp.proj.weight"
        tensors[name] = Tensor(tensors[name].dtype, tensors[name].shape, tensors[name].data[::-1].copy())
        write_tensors(path.with_name("changed"), tensors)
        path.with_name("changed").replace(path)

    with pytest.raises(CheckpointError, match=r"layer 1 mlp\.proj") as caught:
        made(tmp_path, source, "fp8", spoiled)
    assert "relative error" in caught.value.values and caught.value.remedy
    assert [path.name for path in (tmp_path / "engines/tiny/checkpoints").iterdir()] == [".lock"]


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
    assert caught.value.limit and caught.value.remedy
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
    with pytest.raises(CheckpointError, match="not a number"):
        made(tmp_path, copy, "fp8")


class TestProgram:
    """As users run it."""

    def command(self, recipe: Recipe, folder: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "build.quantize", "--recipe", str(recipe.path)]
        return subprocess.run(
            [*command, "--engines", str(folder / "engines"), "--runtime", ""],
            cwd=REPOSITORY_ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def test_the_last_line_is_json_and_progress_is_shown(self, source: Path, tmp_path: Path) -> None:
        recipe = pair_recipe(
            tmp_path,
            {"checkpoint": str(REPOSITORY_ROOT / "engines/demo_pair/draft")},
            {"checkpoint": str(source), "quantization": "fp8"},
        )
        done = self.command(recipe, tmp_path)
        assert done.returncode == 0, done.stderr
        *progress, last = done.stdout.splitlines()
        found = json.loads(last)
        assert found["draft"].endswith("engines/demo_pair/draft") and found["seconds"] > 0
        assert read_checkpoint(Path(found["target"])).config.quant_algo == "FP8"
        assert any("512 of 512 tokens" in line for line in progress), progress
        assert (Path(found["target"]).parent / "target.log").is_file()

    def test_an_error_has_no_traceback(self, source: Path, tmp_path: Path) -> None:
        section = {"checkpoint": str(tmp_path / "nowhere"), "quantization": "fp8"}
        done = self.command(pair_recipe(tmp_path, section, section), tmp_path)
        assert done.returncode == 1 and "does not exist" in done.stderr and "Traceback" not in done.stderr

    def test_a_worker_that_dies_is_explained(self, source: Path, tmp_path: Path) -> None:
        (tmp_path / "broken").mkdir()
        shutil.copytree(source, tmp_path / "broken" / "copy")
        broken = tmp_path / "broken" / "copy"
        config = json.loads((broken / "config.json").read_text())
        (broken / "config.json").write_text(json.dumps({**config, "hidden_act": "no such function"}))
        section = {"checkpoint": str(broken), "quantization": "none"}
        done = self.command(pair_recipe(tmp_path, section, section), tmp_path)
        assert done.returncode == 1 and "ModelOpt could not quantize the draft" in done.stderr
        assert "Traceback" not in done.stderr and "draft.log" in done.stderr
        folder = tmp_path / "engines" / "tiny" / "checkpoints"
        assert sorted(path.name for path in folder.iterdir()) == [".lock", "draft.log"]


def test_other_versions_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize.importlib.metadata, "version", lambda name: "0.37.0")
        with pytest.raises(CheckpointError, match="another version"):
            made(tmp_path, source, "none")


def test_without_modelopt_the_remedy_is_named(source: Path, tmp_path: Path) -> None:
    def absent(name: str) -> str:
        raise quantize.importlib.metadata.PackageNotFoundError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize.importlib.metadata, "version", absent)
        with pytest.raises(CheckpointError, match="make quantize"):
            made(tmp_path, source, "none")


def test_the_recipes_of_the_repository_need_no_quantizing(tmp_path: Path) -> None:
    recipe = load_recipe("demo")
    found = quantize.quantize_recipe(recipe, tmp_path / "engines", lambda line: None)
    assert found["target"] == recipe.target.checkpoint_directory and not (tmp_path / "engines").exists()
