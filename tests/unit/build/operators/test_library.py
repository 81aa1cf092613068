"""Tests of the compiled library: who needs a compiler, and what an engine carries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from build.openvino.engine import OPERATOR_LIBRARY
from build.operators import library
from build.operators.library import compiled_library
from pipelines.errors import EngineBuildError, EngineLoadError
from pipelines.executor.loading import load_engine
from pipelines.manifest import MANIFEST_NAME, EngineFiles, sha256_file
from tests.support.compiler import needs_compiler
from tests.support.tiny_engines import build_tiny_pair

compile_anew = compiled_library.__wrapped__


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_pair(tmp_path_factory.mktemp("engine"), attention="draftproof")[1]


def with_other_library(engine: Path, folder: Path, content: bytes) -> Path:
    """Return a copy of an engine whose library and manifest were both replaced."""
    copy = Path(shutil.copytree(engine, folder / "engine"))
    copy.chmod(0o755)
    for name in (OPERATOR_LIBRARY, MANIFEST_NAME):
        (copy / name).chmod(0o644)
    (copy / OPERATOR_LIBRARY).write_bytes(content)
    manifest = json.loads((copy / MANIFEST_NAME).read_text(encoding="utf-8"))
    manifest["files"][OPERATOR_LIBRARY]["sha256"] = sha256_file(copy / OPERATOR_LIBRARY)
    (copy / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    return copy


def test_without_a_compiler_the_build_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineBuildError) as caught:
        compile_anew()
    assert caught.value.message == "operators of our own cannot be compiled: g++ is not on the PATH"
    assert "apt install g++" in caught.value.remedy
    assert "to 'openvino' in the recipe" in caught.value.remedy


def test_openvinos_operations_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build.openvino.engine.compiled_library", compile_anew)
    monkeypatch.setattr("build.openvino.own_operators.compiled_library", compile_anew)
    monkeypatch.setenv("PATH", "")
    _, target = build_tiny_pair(tmp_path)
    assert not (target / OPERATOR_LIBRARY).exists()
    load_engine(EngineFiles(target), 3)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'kernel.cpp:1: error: no such flag' >&2; exit 1\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(library, "OBJECTS", tmp_path)
    with pytest.raises(EngineBuildError) as caught:
        compile_anew()
    assert (
        caught.value.message == "operators of our own cannot be compiled: kernel.cpp:1: error: no such flag"
    )


@needs_compiler
@pytest.mark.long  # compiles once more
def test_the_library_is_the_same_wherever_it_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "OBJECTS", tmp_path)
    assert compile_anew() == compiled_library()


@needs_compiler
def test_heads_of_another_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineBuildError, match="multiples of 16, not head_size=40"):
        build_tiny_pair(tmp_path, head_size=40, attention="draftproof")


@needs_compiler
def test_a_library_of_another_machine_is_an_error_of_the_engine(engine: Path, tmp_path: Path) -> None:
    copy = with_other_library(engine, tmp_path, b"\x7fELF of something else")
    with pytest.raises(EngineLoadError, match=r"operators cannot be loaded: .*operators\.so: "):
        load_engine(EngineFiles(copy), 3)
