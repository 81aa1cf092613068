"""Tests of finding TensorRT-LLM's version: installed, in an image, with or without a builder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build.tensorrt_llm.versions import Installation, find_installation, image_version
from tests.support.stand_in_machine import StandInMachine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInMachine:
    made = StandInMachine(tmp_path)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


def long_first_line(builder: Path) -> None:
    """Write what pip writes if the path is too long for a shebang."""
    python = builder.read_text().splitlines()[0].removeprefix("#!")
    builder.write_text(f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")


@pytest.mark.parametrize(
    ("version", "program", "change", "expected"),
    [
        ("1.2.1", "trtllm-build", lambda path: None, "1.2.1"),
        ("1.3.0", "trtllm-serve", lambda path: None, "1.3.0"),
        ("1.2.1", "trtllm-build", long_first_line, "1.2.1"),
        ("1.2.1", "trtllm-build", lambda path: path.write_text("#!/bin/sh\n"), "unknown"),
    ],
)
def test_the_interpreter_of_the_program_knows_its_version(
    version: str, program: str, change: Any, expected: str, machine: StandInMachine
) -> None:
    assert find_installation() is None
    path = machine.install(version, program)
    change(path)
    assert find_installation() == Installation(path if program == "trtllm-build" else None, expected)


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
        ("nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3", "of another version"),
        ("nvcr.io/nvidia/tritonserver:26.08-trtllm-python-py3", "of another version"),
        ("registry.example/trtllm:mine", None),
    ],
)
def test_images(image: str, version: str | None) -> None:
    assert image_version(image) == version
