"""Tests of ``python -m build.engines``: it builds what is missing and names it in its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from build import engines
from build.engines import build_engines, main
from build.recipe import Recipe, load_recipe
from pipelines.executor.loading import load_engine
from pipelines.manifest import EngineFiles, checked_engine
from tests.conftest import REPOSITORY_ROOT
from tests.support.checkpoints import make_checkpoint
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    make_checkpoint(tmp_path / "target")
    make_checkpoint(tmp_path / "draft", num_hidden_layers=1)
    growth = {"num_layers": 3, "intermediate_size": 512}
    return {
        "name": "tiny",
        "target": {"checkpoint": str(tmp_path / "target"), "growth": growth},
        "draft": {"checkpoint": str(tmp_path / "draft")},
        "serving": {},
    }


def write_recipe(tmp_path: Path, raw: dict[str, Any]) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def recipe_of(tmp_path: Path, raw: dict[str, Any]) -> Recipe:
    return load_recipe(write_recipe(tmp_path, raw))


def build(tmp_path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    return build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lambda line: None)


def test_a_build_says_how_far_it_is(
    tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.time_left.INTERVAL_S", 0.0)
    lines: list[str] = []
    build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lines.append)
    assert [line.partition(",")[0] for line in lines if line.endswith(" left")] == [
        *["checkpoints: 0.0 of 0.0 GB read"] * 5,  # of six files
        "target: 1 of 3 layers",
        "target: 2 of 3 layers",
    ]


def test_command_line(tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--recipe", str(write_recipe(tmp_path, raw)), "--engines", str(tmp_path / "engines")]
    assert main(arguments) == 0
    *progress, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert result["built"] == ["draft", "target"]
    assert result["seconds"] > 0
    assert any("M parameters" in line for line in progress)
    for role in ("draft", "target"):
        directory = Path(result[role])
        manifest = checked_engine(directory).manifest
        assert directory.name == f"{role}-{manifest['fingerprint'][:16]}"
        assert load_engine(EngineFiles(directory), num_blocks=4).config.role == role
        files = sorted(set(manifest["files"]) - {"operators.so"})  # which only some processors need
        assert files == ["engine.bin", "engine.json", "engine.xml", "tokenizer.json"]
    assert main(arguments) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["built"] == []
    assert again["target"] == result["target"]


def test_only_what_changed_is_built_again(tmp_path: Path, raw: dict[str, Any]) -> None:
    first = build(tmp_path, raw)
    raw["draft"]["quantization"] = "none"
    second = build(tmp_path, raw)
    assert second["built"] == ["draft"]
    assert second["draft"] != first["draft"]
    assert Path(first["draft"]).is_dir()  # the old engine stays: another server may be using it
    del raw["draft"]["quantization"]
    assert build(tmp_path, raw)["built"] == []
    make_checkpoint(tmp_path / "draft", num_hidden_layers=1, seed=9)
    other_weights = build(tmp_path, raw)
    assert other_weights["built"] == ["draft"] and other_weights["draft"] != first["draft"]


def test_a_build_says_why_the_engine_before_does_not_do(
    tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    first = build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lines.append)
    assert not any("fits no longer" in line for line in lines)
    monkeypatch.setattr(engines, "openvino_version", lambda: "2031.1")
    raw["draft"]["kv_cache"] = {"dtype": "float32"}
    build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lines.append)
    why = "fits no longer, because of changes:"
    assert f"target: {Path(first['target']).name} {why} OpenVINO" in lines
    assert f"draft: {Path(first['draft']).name} {why} settings of the recipe, OpenVINO" in lines


def test_a_machine_that_only_builds_may_have_little_memory(
    tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("build.engines.available_bytes", lambda: 1e9)
    lines: list[str] = []
    result = build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lines.append)
    assert result["built"] == ["draft", "target"]
    assert any(line.startswith("warning: the memory does not hold this pair: 1.0 GB free") for line in lines)


def test_neither_serving_limits_nor_the_place_of_a_checkpoint_are_part_of_an_engine(
    tmp_path: Path, raw: dict[str, Any]
) -> None:
    build(tmp_path, raw)
    raw["serving"]["max_batch_size"] = 3
    raw["target"]["kv_cache"] = {"num_blocks": 99}
    (tmp_path / "draft").rename(tmp_path / "moved")
    raw["draft"]["checkpoint"] = str(tmp_path / "moved")
    assert build(tmp_path, raw)["built"] == []


def test_the_longest_text_decides_an_engine_with_longrope(tmp_path: Path, raw: dict[str, Any]) -> None:
    """Its factors are those of texts up to the original context, or those of longer ones."""
    rope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 32,
        "long_factor": [4.0] * 32,
        "original_max_position_embeddings": 512,
    }
    changes = {"rope_scaling": rope, "max_position_embeddings": 4096}
    change_config(make_hugging_face(tmp_path / "hf"), **changes)
    raw["target"] = {"checkpoint": str(tmp_path / "hf")}
    raw["draft"] = {"checkpoint": str(tmp_path / "hf")}

    def target(max_seq_len: int) -> tuple[str, int]:
        raw["serving"]["max_seq_len"] = max_seq_len
        directory = build(tmp_path, raw)["target"]
        description = json.loads((Path(directory) / "engine.json").read_text(encoding="utf-8"))
        return directory, description["max_position_embeddings"]

    short, positions = target(512)
    assert positions == 512
    assert target(256) == (short, 512)
    long, positions = target(513)
    assert long != short and positions == 4096
    assert target(1024) == (long, 4096)


@pytest.mark.parametrize(
    "change",
    [
        lambda target: target.update(num_threads=1),
        lambda target: target.update(thread_placement="free"),
        lambda target: target.update(kv_cache={"dtype": "float32"}),
        pytest.param(lambda target: target.update(attention="draftproof"), marks=needs_compiler),
        lambda target: target["growth"].update(num_layers=5),
    ],
)
def test_what_changes_numbers_makes_another_engine(change: Any, tmp_path: Path, raw: dict[str, Any]) -> None:
    first = build(tmp_path, raw)
    change(raw["target"])
    second = build(tmp_path, raw)
    assert second["built"] == ["target"]
    assert second["target"] != first["target"]


@pytest.mark.parametrize("name", ["engine.bin", "engine.json", "manifest.json"])
def test_an_incomplete_engine_is_built_again(name: str, tmp_path: Path, raw: dict[str, Any]) -> None:
    first = build(tmp_path, raw)
    Path(first["draft"]).chmod(0o755)
    (Path(first["draft"]) / name).unlink()
    assert build(tmp_path, raw)["built"] == ["draft"]
    checked_engine(Path(first["draft"]))


@pytest.mark.long
def test_concurrent_builds_do_not_interfere(tmp_path: Path, raw: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "build.engines", "--recipe", str(write_recipe(tmp_path, raw))]
    command += ["--engines", str(tmp_path / "engines")]
    builders = [
        subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    results = [json.loads(builder.communicate(timeout=120)[0].splitlines()[-1]) for builder in builders]
    # each engine is built once, by either process
    assert sum(len(result["built"]) for result in results) == 2
    assert results[0]["target"] == results[1]["target"]


def test_engines_that_are_there_are_named_without_writing_anything(
    tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate is rendered in containers with a read-only checkout, engines included."""
    built = build(tmp_path, raw)
    (tmp_path / "engines" / "tiny" / ".lock").unlink()
    monkeypatch.setattr(engines, "exclusive", None)
    assert {**build(tmp_path, raw), "seconds": 0} == {**built, "built": [], "seconds": 0}
    assert not (tmp_path / "engines" / "tiny" / ".lock").exists()


def test_a_place_that_cannot_be_written(
    tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    arguments = ["--recipe", str(write_recipe(tmp_path, raw)), "--engines", str(tmp_path / "file")]
    assert main(arguments) == 1
    assert "engines cannot be written to" in capsys.readouterr().err
