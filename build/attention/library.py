"""Compile the attention operator to a library, which an engine carries as one of its files.

It needs g++ and the headers that OpenVINO's package brings. An engine that is served needs neither.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openvino as ov

from pipelines.errors import EngineBuildError
from pipelines.manifest import sha256_file, sha256_json

COMPILER = "g++"
_SOURCES = Path(__file__).resolve().parent
_PACKAGE = Path(ov.__file__).resolve().parent
# Products and sums are fused only where the source says so: then all processors round alike.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
_PARTS = {
    "operator": ("operator.cpp", "-DOV_THREAD=OV_THREAD_TBB_ADAPTIVE"),
    "avx2": ("kernel.cpp", "-DLANES=avx2", "-mavx2", "-mfma", "-mf16c"),
    "avx512": ("kernel.cpp", "-DLANES=avx512", "-mavx512f", "-mfma", "-mf16c"),
}


def source_digest() -> str:
    """Return the SHA-256 of the operator's sources and of how they are compiled, hexadecimal."""
    sources = {path.name: sha256_file(path) for path in sorted(_SOURCES.iterdir()) if path.is_file()}
    return sha256_json(sources)


def check_compiler() -> None:
    """Check that there is a compiler.

    Raises:
        EngineBuildError: There is none.
    """
    if shutil.which(COMPILER) is None:
        raise EngineBuildError(
            "the attention operator cannot be compiled",
            values=f"{COMPILER} is not on the PATH",
            limit="'attention: draftproof' compiles it with the engine",
            remedy=f"install it (Debian: apt install {COMPILER}), or set 'attention: openvino' in the recipe "
            "unless the network caps attention scores",
        )


@functools.cache
def compiled_library() -> bytes:
    """Return the compiled library; the first call takes about 10 seconds.

    Raises:
        EngineBuildError: There is no compiler, or it failed.
    """
    check_compiler()
    with tempfile.TemporaryDirectory(prefix="draftproof-attention-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(len(_PARTS)) as pool:
            objects = list(pool.map(functools.partial(_compile, folder), _PARTS))
        library = folder / "attention.so"
        libraries = [next((_PACKAGE / "libs").glob(f"lib{name}.so*")) for name in ("openvino", "tbb")]
        _run("-shared", "-s", "-o", str(library), *map(str, objects), *map(str, libraries))
        return library.read_bytes()


def _compile(folder: Path, part: str) -> Path:
    source, *flags = _PARTS[part]
    made = folder / f"{part}.o"
    _run(*_FLAGS, *flags, "-isystem", str(_PACKAGE / "include"), "-c", source, "-o", str(made))
    return made


def _run(*arguments: str) -> None:
    """Run the compiler among the sources, so that the library holds no path of this machine."""
    done = subprocess.run([COMPILER, *arguments], cwd=_SOURCES, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise EngineBuildError(
            "the attention operator cannot be compiled",
            values=(errors or [f"{COMPILER} ended with code {done.returncode}"])[0],
            limit="g++ 9 or newer, and OpenVINO's headers, which its package brings",
            remedy="install a newer g++, or set 'attention: openvino' in the recipe",
        )
