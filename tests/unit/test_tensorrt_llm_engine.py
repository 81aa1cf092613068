"""``trtllm-build``: its exact command, what it makes, and every way in which it fails.

The program is a stand-in (``tests/stand_in_trtllm_build.py``) that refuses what the real one refuses; nothing
here ran on a GPU.
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
from build.manifest import verify_manifest
from build.recipe import Recipe, load_recipe
from build.tensorrt_llm.command import Paths, build_command
from build.tensorrt_llm.pair import read_pair
from pipelines.errors import CheckpointError, DraftproofError, EngineBuildError
from tests.conftest import REPOSITORY_ROOT
from tests.fixtures_checkpoints import make_checkpoint
from tests.stand_in_machine import StandInMachine
from tests.tensorrt_llm_1_2_1 import FLAGS, NUMBER, PATH


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInMachine:
    made = StandInMachine(tmp_path / "machine")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    make_checkpoint(tmp_path / "target", "FP8", logits_dtype="float32", mapping=_mapping(1), end_ids=[0, 7])
    make_checkpoint(tmp_path / "draft", "FP8", num_hidden_layers=1, mapping=_mapping(1))
    return {
        "name": "tiny",
        "runtime": "tensorrt_llm",
        "target": {"checkpoint": str(tmp_path / "target"), "quantization": "checkpoint"},
        "draft": {"checkpoint": str(tmp_path / "draft"), "quantization": "checkpoint"},
        "serving": {"max_draft_len": 4},
    }


def _mapping(ranks: int) -> dict[str, int]:
    return {"world_size": ranks, "tp_size": ranks, "pp_size": 1}


def write_recipe(tmp_path: Path, raw: dict[str, Any]) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def recipe_of(tmp_path: Path, raw: dict[str, Any]) -> Recipe:
    return load_recipe(write_recipe(tmp_path, raw))


def build(tmp_path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    return build_engines(recipe_of(tmp_path, raw), tmp_path / "engines", lambda line: None)


def command_of(tmp_path: Path, raw: dict[str, Any], role: str) -> dict[str, str]:
    pair = read_pair(recipe_of(tmp_path, raw), tmp_path / "engines")
    side = pair.draft if role == "draft" else pair.target
    paths = Paths(Path("/c"), Path("/o"), Path("/old"), Path("/new"))
    words = build_command(pair, side, paths)
    assert words[0] == "trtllm-build"
    assert len(words) % 2 == 1 and all(word.startswith("--") for word in words[1::2])
    return {name[2:]: value for name, value in zip(words[1::2], words[2::2], strict=True)}


EVERYTHING_ON = {
    "gemm_plugin": "auto",
    "low_latency_gemm": True,
    "gemm_swiglu": True,
    "reduce_fusion": True,
    "multiple_profiles": True,
    "tokens_per_block": 64,
    "max_input_len": 700,
}


@pytest.mark.parametrize("section", [{}, EVERYTHING_ON])
@pytest.mark.parametrize("role", ["draft", "target"])
def test_every_flag_exists_in_1_2_1_with_that_value(
    role: str, section: dict[str, Any], tmp_path: Path, raw: dict[str, Any]
) -> None:
    raw[role]["tensorrt_llm"] = section
    for name, value in command_of(tmp_path, raw, role).items():
        allowed = FLAGS[name].values
        if isinstance(allowed, tuple):
            assert value in allowed, name
        else:
            assert allowed in (NUMBER, PATH), name
            assert allowed == PATH or value.isdecimal(), name


def test_the_target_verifies_and_the_draft_does_not(tmp_path: Path, raw: dict[str, Any]) -> None:
    target, draft = (command_of(tmp_path, raw, role) for role in ("target", "draft"))
    assert target.pop("speculative_decoding_mode") == "draft_tokens_external"
    assert target.pop("max_draft_len") == "4"
    assert target == draft
    expected = {
        "max_batch_size": "16",
        "max_seq_len": "1024",
        "max_input_len": "1023",
        "max_num_tokens": "1024",
        "max_beam_width": "1",
        "kv_cache_type": "paged",
        "use_paged_context_fmha": "enable",
        "use_fp8_context_fmha": "disable",
        "gemm_plugin": "disable",
        "logits_dtype": "float32",
        "input_timing_cache": "/old",
        "output_timing_cache": "/new",
    }
    assert {name: draft[name] for name in expected} == expected
    assert "gather_context_logits" not in target


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
        manifest = verify_manifest(directory)
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


def test_the_second_build_reads_the_tactics_of_the_first(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    result = build(tmp_path, raw)
    commands = [verify_manifest(Path(result[role]))["command"] for role in ("draft", "target")]
    kept = tmp_path / "engines" / "tiny" / "timing-h100-80gb-1.2.1.cache"
    assert "--input_timing_cache" not in commands[0]
    assert commands[1][commands[1].index("--input_timing_cache") + 1] == str(kept)
    assert kept.is_file()


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_in_a_container(runtime: str, machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]) -> None:
    machine.install_container_runtime(runtime)
    result = build(tmp_path, raw)
    manifest = verify_manifest(Path(result["target"]))
    assert manifest["container"] == "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"
    log = (tmp_path / "engines" / "tiny" / f"{Path(result['target']).name}.log").read_text()
    assert log.startswith(f"image {manifest['container']}\n")


def test_an_installed_builder_of_another_version_gives_way_to_the_container(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.1.0")
    machine.install_container_runtime("docker")
    assert verify_manifest(Path(build(tmp_path, raw)["draft"]))["container"] is not None


def left_behind(tmp_path: Path) -> list[str]:
    """What a failed build left in the recipe's folder, but for logs, lock and tactics."""
    folder = tmp_path / "engines" / "tiny"
    kept = (".log", ".lock", ".cache")
    return [path.name for path in folder.iterdir() if not path.name.endswith(kept)] if folder.exists() else []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", r"exit code 1; .*OutOfMemory.*; the whole log is .*draft-[0-9a-f]{16}\.log"),
        ("killed", "signal SIGKILL"),
        ("full disk", "File too large"),
        ("half", r"rank0\.engine is missing"),
        ("empty", r"rank0\.engine is empty"),
    ],
)
def test_a_build_that_fails_leaves_a_log_and_no_engine(
    fault: str,
    message: str,
    machine: StandInMachine,
    tmp_path: Path,
    raw: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine.install("1.2.1")
    monkeypatch.setenv("STAND_IN_FAULT", fault)
    with pytest.raises(EngineBuildError, match=message) as caught:
        build(tmp_path, raw)
    assert caught.value.values and caught.value.limit and caught.value.remedy
    assert left_behind(tmp_path) == []
    monkeypatch.delenv("STAND_IN_FAULT")
    assert build(tmp_path, raw)["built"] == ["draft", "target"]


def test_an_engine_of_another_version_is_thrown_away(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("1.2.1")
    monkeypatch.setenv("STAND_IN_VERSION", "1.2.0")
    with pytest.raises(EngineBuildError, match=r"version 1\.2\.0, asked for 1\.2\.1"):
        build(tmp_path, raw)
    assert left_behind(tmp_path) == []


def test_a_disk_that_is_full_when_the_tokenizer_is_copied(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.install("1.2.1")

    def full(source: Path, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("build.tensorrt_llm_engine.shutil.copyfile", full)
    with pytest.raises(EngineBuildError, match="No space left on device"):
        build(tmp_path, raw)
    assert left_behind(tmp_path) == []


def start_slow_build(tmp_path: Path, raw: dict[str, Any], started: Path) -> subprocess.Popen[bytes]:
    """A build in a session of its own, whose ``trtllm-build`` goes on until ``started`` is deleted."""
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
    process.wait(timeout=30)
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
    process.wait(timeout=30)
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
    process.wait(timeout=30)
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
            r"1\.3\.0 without trtllm-build.*removed from TensorRT-LLM in June and July 2026.*make llm-api",
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


def test_a_container_runtime_that_cannot_run(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    docker = machine.bin / "docker"
    docker.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon >&2\nexit 125\n")
    docker.chmod(0o755)
    with pytest.raises(EngineBuildError, match="docker failed on the draft; exit code 125; Cannot connect"):
        build(tmp_path, raw)


def test_a_checkpoint_without_all_its_ranks(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    config = tmp_path / "target" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "mapping": _mapping(2)}))
    raw["target"]["tensorrt_llm"] = {"tp_size": 2}
    with pytest.raises(CheckpointError, match=r"rank1\.safetensors is missing"):
        build(tmp_path, raw)


def test_changed_weights_or_flags_make_another_engine(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any]
) -> None:
    machine.install("1.2.1")
    build(tmp_path, raw)
    make_checkpoint(tmp_path / "draft", "FP8", num_hidden_layers=1, seed=9, mapping=_mapping(1))
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
    raw["target"]["tensorrt_llm"] = {"kv_cache_dtype": "int8"}
    lines: list[str] = []
    with pytest.raises(DraftproofError, match="does not pass the pre-flight"):
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


def test_dry_run_before_the_quantization_prints_its_command_first(
    machine: StandInMachine, tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    make_checkpoint(tmp_path / "target", mapping=_mapping(1))
    raw["target"]["quantization"] = "fp8"
    lines = dry_run(tmp_path, raw, capsys)
    assert lines[0] == "make quantize RECIPE=tiny RUNTIME=tensorrt_llm"
    assert "checkpoints/target-FINGERPRINT" in lines[2]


def test_dry_run_of_the_embedded_runtime_is_refused(
    tmp_path: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--recipe", str(write_recipe(tmp_path, raw)), "--dry-run", "--runtime", "embedded"]) == 1
    assert "no command to print" in capsys.readouterr().err
