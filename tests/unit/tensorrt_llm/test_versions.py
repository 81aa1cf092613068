"""Tests of finding TensorRT-LLM's version: installed, in an image, with or without a builder."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.tensorrt_llm.versions import find_installation, has_known_flags, image_version, without_builder
from tests.support.stand_in_machine import StandInMachine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInMachine:
    made = StandInMachine(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


def test_nothing_is_installed(machine: StandInMachine) -> None:
    assert find_installation() is None


def test_the_interpreter_of_the_program_knows_its_version(machine: StandInMachine) -> None:
    builder = machine.install("1.2.1")
    found = find_installation()
    assert found is not None
    assert (found.builder, found.version) == (builder, "1.2.1")


def test_a_server_without_a_builder(machine: StandInMachine) -> None:
    machine.install("1.3.0", "trtllm-serve")
    found = find_installation()
    assert found is not None
    assert (found.builder, found.version) == (None, "1.3.0")


def test_the_long_first_line_that_pip_writes(machine: StandInMachine) -> None:
    builder = machine.install("1.2.1")
    python = builder.read_text().splitlines()[0].removeprefix("#!")
    builder.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    found = find_installation()
    assert found is not None
    assert found.version == "1.2.1"


def test_a_program_that_is_not_python_has_an_unknown_version(machine: StandInMachine) -> None:
    builder = machine.bin / "trtllm-build"
    builder.write_text("#!/bin/sh\n")
    builder.chmod(0o755)
    found = find_installation()
    assert found is not None
    assert found.version == "unknown"


def test_a_python_that_does_not_answer_has_an_unknown_version(
    machine: StandInMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, builder = machine.bin / "python-that-hangs", machine.bin / "trtllm-build"
    python.write_text("#!/bin/sh\nexec sleep 5\n")
    builder.write_text(f"#!{python}\n")
    for program in (python, builder):
        program.chmod(0o755)
    monkeypatch.setattr("build.tensorrt_llm.versions._TIMEOUT_S", 0.1)
    found = find_installation()
    assert found is not None and found.version == "unknown"


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3", "1.2.1"),
        ("nvcr.io/nvidia/tritonserver:25.11-trtllm-python-py3", "1.0.3.2510"),
        ("nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3", "1.2.0"),
        ("nvcr.io/nvidia/tritonserver:26.08-trtllm-python-py3", "unknown"),
        ("registry.example/trtllm:mine", None),
    ],
)
def test_images(image: str, version: str | None) -> None:
    assert image_version(image) == version


def test_versions() -> None:
    assert [without_builder(version) for version in ("1.2.1", "1.3.0rc17", "1.3.0", "2.0")] == [
        False,
        True,
        True,
        True,
    ]
    assert [has_known_flags(version) for version in ("1.2.1", "1.2.1+cu130", "1.2.0", "1.2.10")] == [
        True,
        True,
        False,
        False,
    ]
