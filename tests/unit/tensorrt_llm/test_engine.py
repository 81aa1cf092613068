"""Tests of building with ``trtllm-build``: its exact command, its result, and every way in which it fails.

The program is a stand-in (``tests/support/stand_in_trtllm_build.py``) that refuses what the real one refuses.
Nothing here ran on a GPU.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.engines import build_engines, main
from build.recipe import Recipe, load_recipe
from pipelines.errors import CheckpointError, DraftproofError, EngineBuildError
from pipelines.manifest import checked_engine
from tests.conftest import REPOSITORY_ROOT
from tests.support.checkpoints import make_checkpoint, mapping_of
from tests.support.stand_in_machine import StandInMachine

pytestmark = pytest.mark.long  # a stand-in of trtllm-build


def write_recipe(tmp_path: Path, raw: dict[str, Any]) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def recipe_of(tmp_path: Path, raw: dict[str, Any]) -> Recipe:
    return load_recipe(write_recipe(tmp_path, raw))


def build(tmp_path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    return build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lambda line: None)


def test_a_pair_is_built_and_the_second_time_is_there(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    machine.install("1.2.1")
    arguments = ["--recipe", str(write_recipe(tmp_path, raw)), "--engines", str(tmp_path / "engines")]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["built"] == ["draft", "target"]
    for role in ("draft", "target"):
        directory = Path(result[role])
        manifest = checked_engine(directory).manifest
        assert directory.name == f"{role}-{manifest['fingerprint'][:16]}"
        assert sorted(manifest["files"]) == ["config.json", "rank0.engine", "tokenizer.json"]
        assert manifest["tensorrt_llm_version"] == "1.2.1"
        assert manifest["container"] is None
        assert manifest["end_ids"] == ([0] if role == "draft" else [0, 7])
        assert (tmp_path / "engines" / "tiny" / f"{directory.name}.log").read_text().startswith("[TRT-LLM]")
    built = json.loads((Path(result["target"]) / "config.json").read_text())["build_config"]
    assert (built["max_seq_len"], built["max_draft_len"]) == (1028, 4)  # the builder's own addition
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["built"] == []


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_in_a_container(runtime: str, machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]) -> None:
    machine.install_container_runtime(runtime)
    result = build(tmp_path, raw)
    manifest = checked_engine(Path(result["target"])).manifest
    assert manifest["container"] == "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"
    log = (tmp_path / "engines" / "tiny" / f"{Path(result['target']).name}.log").read_text()
    assert log.startswith(f"image {manifest['container']}\n")


def test_an_installed_builder_of_another_version_gives_way_to_the_container(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.1.0")
    machine.install_container_runtime("docker")
    assert checked_engine(Path(build(tmp_path, raw)["draft"])).manifest["container"] is not None


def left_behind(tmp_path: Path) -> list[str]:
    """Return what a failed build left in the recipe's folder, except logs, lock and tactics."""
    folder = tmp_path / "engines" / "tiny"
    kept = (".log", ".lock", ".cache")
    return [path.name for path in folder.iterdir() if not path.name.endswith(kept)] if folder.exists() else []


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("FAULT", "exit", r"exit code 1; .*OutOfMemory; read .*draft-[0-9a-f]{16}\.log"),
        ("FAULT", "killed", "signal SIGKILL"),
        ("FAULT", "full disk", "File too large"),
        ("FAULT", "half", r"rank0\.engine is missing"),
        ("FAULT", "empty", r"rank0\.engine is empty"),
        ("VERSION", "1.2.0", r"version 1\.2\.0, expected 1\.2\.1"),
    ],
)
def test_a_build_that_fails_leaves_a_log_and_no_engine(
    variable: str,
    value: str,
    message: str,
    machine: StandInMachine,
    tmp_path: Path,
    raw: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.install("1.2.1")
    monkeypatch.setenv(f"STAND_IN_{variable}", value)
    with pytest.raises(EngineBuildError, match=message) as caught:
        build(tmp_path, raw)
    assert caught.value.message and caught.value.remedy
    assert left_behind(tmp_path) == []
    monkeypatch.delenv(f"STAND_IN_{variable}")
    assert build(tmp_path, raw)["built"] == ["draft", "target"]


def start_slow_build(tmp_path: Path, raw: dict[str, Any], started: Path) -> subprocess.Popen[bytes]:
    """Start a build in its own session, whose ``trtllm-build`` runs until ``started`` is deleted."""
    command = ["env", "--default-signal=INT", sys.executable, "-m", "build.engines"]  # jobs ignore it
    command += ["--recipe", str(write_recipe(tmp_path, raw)), "--engines", str(tmp_path / "engines")]
    environment = {**os.environ, "STAND_IN_FAULT": "slow", "STAND_IN_STARTED": str(started)}
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY_ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def test_killed_with_its_builder_in_the_middle(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    process = start_slow_build(tmp_path, raw, tmp_path / "started")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=120)
    (leftover,) = left_behind(tmp_path)
    assert leftover.startswith(".draft-")  # no step looks for such a name
    assert build(tmp_path, raw)["built"] == ["draft", "target"]
    assert leftover not in left_behind(tmp_path)


def test_a_builder_that_survives_us_keeps_the_next_one_out(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    started = tmp_path / "started"
    process = start_slow_build(tmp_path, raw, started)
    process.kill()
    process.wait(timeout=120)
    with (tmp_path / "engines" / "tiny" / ".lock").open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        started.unlink()
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert build(tmp_path, raw)["built"] == ["draft", "target"]


def test_ctrl_c_ends_the_builder_too(machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]) -> None:
    machine.install("1.2.1")
    process = start_slow_build(tmp_path, raw, tmp_path / "started")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=120)
    assert left_behind(tmp_path) == []
    with (tmp_path / "engines" / "tiny" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("install", "message"),
    [
        (lambda machine: None, "no TensorRT-LLM on PATH; neither docker nor podman"),
        (lambda machine: machine.install("1.1.0"), r"trtllm-build of TensorRT-LLM 1\.1\.0"),
        (
            lambda machine: machine.install("1.3.0", "trtllm-serve"),
            r"1\.3\.0 without trtllm-build.*removed from TensorRT-LLM 1.3.*tensorrt_llm\.version: 1\.3\.0",
        ),
    ],
)
def test_without_a_builder(
    install: Any, message: str, machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    install(machine)
    with pytest.raises(EngineBuildError, match=message):
        build(tmp_path, raw)
    assert left_behind(tmp_path) == []


def test_a_checkpoint_lacking_ranks(machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]) -> None:
    machine.install("1.2.1")
    config = tmp_path / "target" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "mapping": mapping_of(2)}))
    raw["target"]["tensorrt_llm"] = {"tp_size": 2}
    with pytest.raises(CheckpointError, match=r"rank1\.safetensors does not exist"):
        build(tmp_path, raw)


def test_changed_weights_or_flags_make_another_engine(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    first = build(tmp_path, raw)
    commands = [checked_engine(Path(first[role])).manifest["command"] for role in ("draft", "target")]
    # With the timing cache of the build before, two builds choose the same kernels.
    assert ["--input_timing_cache" in command for command in commands] == [False, True]
    make_checkpoint(tmp_path / "draft", "FP8", num_hidden_layers=1, seed=9, mapping=mapping_of(1))
    assert build(tmp_path, raw)["built"] == ["draft"]
    raw["serving"]["max_draft_len"] = 6
    assert build(tmp_path, raw)["built"] == ["target"]
    raw["serving"]["max_queue_size"] = 3
    raw["tensorrt_llm"] = {"batch_scheduler_policy": "max_utilization"}
    assert build(tmp_path, raw)["built"] == []


def test_nothing_is_built_if_the_preflight_finds_something(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    raw["target"]["tensorrt_llm"] = {"kv_cache_dtype": "fp8"}
    lines: list[str] = []
    with pytest.raises(DraftproofError, match="does not pass preflight"):
        build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lines.append)
    assert any(line.startswith("checkpoint (target)") for line in lines)
    assert not (tmp_path / "engines").exists()


def dry_run(tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> list[str]:
    arguments = ["--recipe", str(write_recipe(tmp_path, raw)), "--engines", str(tmp_path / "engines")]
    assert main([*arguments, "--dry-run", "--runtime", "tensorrt_llm"]) == 0
    return capsys.readouterr().out.splitlines()


def test_dry_run_needs_no_builder_and_no_weights(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for role in ("draft", "target"):
        (tmp_path / role / "rank0.safetensors").unlink()
    lines = dry_run(tmp_path, raw, capsys)
    assert [shlex.split(line)[0] for line in lines] == ["trtllm-build", "trtllm-build"]
    assert f"--checkpoint_dir {tmp_path / 'target'} " in lines[1]
    assert not (tmp_path / "engines").exists()


def test_dry_run_of_the_embedded_runtime_is_refused(
    tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--recipe", str(write_recipe(tmp_path, raw)), "--dry-run", "--runtime", "embedded"]) == 1
    assert "no command to print" in capsys.readouterr().err
