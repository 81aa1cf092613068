"""Marks tests of operators of our own, and compiles their parts once for all workers of a run."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from build.operators import library
from build.operators.library import COMPILER, _compile

needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}")
ATTENTIONS = ("openvino", pytest.param("draftproof", marks=needs_compiler))


def compile_once(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let builds of this process take the parts of the library that another worker has compiled."""

    def compiled(_: Path, part: str) -> Path:
        made = shared / f"{part}.o"
        with (shared / f"{part}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                folder = shared / part
                folder.mkdir(exist_ok=True)
                _compile(folder, part).rename(made)
        return made

    monkeypatch.setattr(library, "_compile", compiled)
