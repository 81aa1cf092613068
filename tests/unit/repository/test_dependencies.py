"""Tests that the lock files agree and name no host."""

from __future__ import annotations

import re

import pytest

from build.tensorrt_llm.settings import TensorRtLlm
from tests.conftest import REPOSITORY_ROOT

LOCKS = ("run", "test", "build")
PEER_LOCKS = ("peers-llama-cpp", "peers-ik-llama-cpp", "clients")  # without our numpy


def _lines(name: str) -> list[str]:
    return (REPOSITORY_ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def _pins(name: str) -> set[tuple[str, str, str]]:
    """Return (package, version, marker) of each pinned line."""
    found = (re.match(r"([a-z0-9-]+)==([^ ;\\]+)(?: ; (.*?))?(?: \\)?$", line) for line in _lines(name))
    return {(match[1], match[2], match[3] or "") for match in found if match}


@pytest.mark.parametrize("name", LOCKS)
def test_numpy_is_the_last_one_that_the_embedded_triton_can_use(name: str) -> None:
    assert {pin for pin in _pins(name) if pin[0] == "numpy"} == {("numpy", "1.26.4", "")}


@pytest.mark.parametrize("name", ["run", "build"])
def test_one_environment_can_hold_all_locks(name: str) -> None:
    versions = {(package, version) for package, version, _ in _pins(name)}
    assert versions - {(package, version) for package, version, _ in _pins("test")} == set()


@pytest.mark.parametrize("name", [*LOCKS, *PEER_LOCKS])
def test_every_pin_has_hashes_and_torch_stands_apart(name: str) -> None:
    text = "\n".join(_lines(name))
    for package, version, _ in _pins(name):
        assert re.search(rf"^{package}=={re.escape(version)}.*\\\n    --hash=sha256:", text, re.MULTILINE)
        assert package not in ("torch", "torchvision", "torchaudio", "torchcodec")
    assert [line for line in _lines("torch") if not line.startswith("#")] == ["torch==2.13.0"]


def test_the_run_time_lock_is_small() -> None:
    # With their dependencies aiohttp is nine of them, huggingface-hub six, pydantic four, cryptography three.
    packages = {package for package, _, _ in _pins("run")}
    assert len(packages) <= 49
    assert {"torch", "transformers", "hf-xet", "click"} & packages == set()


def test_the_gpu_file_names_what_the_group_and_the_recipes_name() -> None:
    pins = [line for line in _lines("gpu") if not line.startswith("#")]
    project = (REPOSITORY_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    group = project.partition("gpu = [")[2].partition("]")[0]
    assert pins == re.findall(r'"(.*?)"', group)
    assert f"tensorrt-llm=={TensorRtLlm().version}" in pins
