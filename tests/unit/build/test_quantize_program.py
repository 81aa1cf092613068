"""Tests of ``draftproof quantize`` as users type it, except for the installation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from build.checkpoints.checkpoint import read_checkpoint
from build.recipe import Recipe
from tests.conftest import REPOSITORY_ROOT
from tests.support.hugging_face_checkpoints import make_hugging_face, pair_recipe

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.long]  # real ModelOpt


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("modelopt") is None:  # importing it takes ten seconds
        pytest.skip("nvidia-modelopt is not installed (requirements/build.txt)")
    return make_hugging_face(tmp_path_factory.mktemp("source") / "llama")


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
    assert read_checkpoint(Path(found["target"])).config.quant_algo == "FP8"
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
