"""Compiles the kernels for direct calls, with the flags of the real library."""

from __future__ import annotations

import ctypes
from pathlib import Path

import openvino as ov

from build.operators import library

_PACKAGE = Path(ov.__file__).parent


def compile_calls(folder: Path, source: Path, *parts: str) -> ctypes.CDLL:
    """Compile a source of functions for ctypes with parts of the library, and load it."""
    objects = [str(library.compiled_parts()[part]) for part in parts]
    threads = next((_PACKAGE / "libs").glob("libtbb.so*"))
    made = folder / "calls.so"
    flags = ("-std=c++17", "-shared", "-fPIC", "-I", ".", "-isystem", str(_PACKAGE / "include"))
    library._run(*flags, str(source), *objects, str(threads), "-o", str(made))
    return ctypes.CDLL(str(made))
