"""Tests of the row rule with more threads than tokens, where OpenVINO takes another attention kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.compiler import needs_compiler
from tests.support.tiny_engines import ROOT, build_tiny_pair

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

# Each is a process with an engine of its own.
THREADS = pytest.mark.parametrize(
    "num_threads", ["4", *(pytest.param(number, marks=pytest.mark.long) for number in ("3", "8"))]
)


@pytest.fixture(scope="module")
def eight_processors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    return pretend_processors(tmp_path_factory.mktemp("processors"), 8)


def pretend_processors(folder: Path, count: int) -> dict[str, str]:
    """Return the variables with which a program sees ``count`` processors.

    OpenVINO starts no more threads than there are processors, and its kernels depend on their number.
    """
    for number in range(count):
        processor = folder / "cpu" / f"cpu{number}"
        for level in range(4):
            _write(processor / "cache" / f"index{level}" / "shared_cpu_list", f"{number}")
        _write(processor / "topology" / "core_cpus_list", f"{number}")
        _write(processor / "topology" / "physical_package_id", "0")
    for name in ("online", "possible", "present"):
        _write(folder / "cpu" / name, f"0-{count - 1}")
    _write(folder / "node" / "node0" / "cpulist", f"0-{count - 1}")
    library = folder / "pretended_processors.so"
    source = Path(__file__).with_name("pretended_processors.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "PRETENDED_SYSTEM": str(folder), "PRETENDED_PROCESSORS": str(count)}


def _write(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n", encoding="utf-8")


def build(folder: Path, form: str) -> Path:
    names = ("quantization", "kv_cache_dtype", "attention", "linear")
    _, target = build_tiny_pair(folder, **dict(zip(names, form.split(", "), strict=False)))
    return target


@pytest.fixture(scope="module", params=["none, float32, openvino", "int8, int8, openvino"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("engine"), request.param)


@pytest.fixture(
    scope="module",
    params=["none, float32, draftproof", "int8, int8, draftproof", "int8, float32, draftproof, draftproof"],
)
def own_attention(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("engine"), request.param)


def numbers_that_differ(directory: Path, processors: Mapping[str, str], *arguments: str) -> str:
    module = "tests.unit.executor.rows_and_threads"
    command = [sys.executable, "-m", module, str(directory), *arguments]
    environment = {**os.environ, **processors}
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


@THREADS
def test_decode_tokens_have_the_same_bits_with_more_threads_than_tokens(
    directory: Path, eight_processors: Mapping[str, str], num_threads: str
) -> None:
    assert numbers_that_differ(directory, eight_processors, num_threads) == "[]"


def test_control_without_further_sequences_few_tokens_have_other_bits(
    directory: Path, eight_processors: Mapping[str, str]
) -> None:
    found = numbers_that_differ(directory, eight_processors, "4", "bare")
    assert found == "[(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]"


@needs_compiler
@THREADS
@pytest.mark.parametrize(
    "arguments",
    [pytest.param((), marks=pytest.mark.long), ("bare",)],
    ids=["with further sequences", "without"],
)
def test_with_our_own_attention_decode_tokens_need_no_further_sequences(
    own_attention: Path, eight_processors: Mapping[str, str], num_threads: str, arguments: tuple[str, ...]
) -> None:
    assert numbers_that_differ(own_attention, eight_processors, num_threads, *arguments) == "[]"
