"""Compile the operators to a library, which an engine carries as one of its files.

It needs g++ and the headers that OpenVINO's package brings. An engine that is served needs neither, and the
package ``draftproof-serve`` brings the library.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openvino as ov

from build.files import exclusive
from pipelines.atomic_file import whole_file
from pipelines.errors import EngineBuildError
from pipelines.manifest import sha256_file, sha256_json
from pipelines.places import CACHE

COMPILER = "g++"
_SOURCES = Path(__file__).resolve().parent
OBJECTS = CACHE / "operators"
SHIPPED = _SOURCES / "operators-{}-{}.so".format(*ov.__version__.split("-"))
"""Comes with a package, compiled for the OpenVINO that it requires; a checkout has none."""

_PACKAGE = Path(ov.__file__).resolve().parent
# Products and sums are fused only where the source says so: then all processors round alike.
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
_AVX2 = ("-DLANES=avx2", "-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-DLANES=avx512", "-mavx512f", "-mfma", "-mf16c")
_VNNI = ("-mavx512bw", "-mavx512vnni")
PRODUCTS = ("blocks", "bytes", "floats", "kernel")
_PARTS = {
    "extension": ("extension.cpp", "-DOV_THREAD=OV_THREAD_TBB_ADAPTIVE"),
    "attention_avx2": ("attention/kernel.cpp", *_AVX2),
    "attention_avx512": ("attention/kernel.cpp", *_AVX512),
    **{f"linear_{part}_avx2": (f"linear/{part}.cpp", *_AVX2) for part in PRODUCTS},
    **{f"linear_{part}_avx512": (f"linear/{part}.cpp", *_AVX512, *_VNNI) for part in PRODUCTS},
    "recurrence_avx2": ("recurrence/kernel.cpp", *_AVX2),
    "recurrence_avx512": ("recurrence/kernel.cpp", *_AVX512),
}


def source_digest() -> str:
    """Return the SHA-256 of the operators' sources and of how they are compiled, hexadecimal."""
    sources = [path for path in sorted(_SOURCES.rglob("*")) if path.suffix in (".cpp", ".h", ".py")]
    return sha256_json({str(path.relative_to(_SOURCES)): sha256_file(path) for path in sources})


def has_operators() -> bool:
    """Return whether there is the library, or a compiler for it."""
    return SHIPPED.exists() or shutil.which(COMPILER) is not None


def check_operators() -> None:
    """Check that there is the library, or a compiler for it.

    Raises:
        EngineBuildError: There is neither.
    """
    if not has_operators():
        raise EngineBuildError(
            f"operators of our own cannot be compiled: {COMPILER} is not on the PATH",
            f"install it (Debian: apt install {COMPILER}), or set 'attention' and 'linear' to 'openvino' in "
            "the recipe, unless the network has experts or needs attention of our own",
        )


@functools.cache
def compiled_library() -> bytes:
    """Return the library: the one that came with a package, else one that is linked from its parts.

    Raises:
        EngineBuildError: There is no compiler, or it failed.
    """
    if SHIPPED.exists():
        return SHIPPED.read_bytes()
    parts = compiled_parts().values()
    with tempfile.TemporaryDirectory(prefix="draftproof-operators-") as folder:
        library = Path(folder, "operators.so")
        libraries = [next((_PACKAGE / "libs").glob(f"lib{name}.so*")) for name in ("openvino", "tbb")]
        _run("-shared", "-s", "-o", str(library), *map(str, parts), *map(str, libraries))
        return library.read_bytes()


def compiled_parts() -> dict[str, Path]:
    """Return name -> object file of each part of the library.

    They are compiled once for these sources, compiler and OpenVINO, which takes half a minute of
    CPU time.

    Raises:
        EngineBuildError: There is no compiler, or it failed.
    """
    check_operators()
    version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=False).stdout
    folder = OBJECTS / sha256_json([source_digest(), version, ov.__version__])[:16]
    parts = {part: folder / f"{part}.o" for part in _PARTS}
    with exclusive(folder), ThreadPoolExecutor(len(_PARTS)) as pool:
        missing = {part: path for part, path in parts.items() if not path.exists()}
        list(pool.map(_compile, missing.keys(), missing.values()))
    return parts


def _compile(part: str, path: Path) -> None:
    source, *flags = _PARTS[part]
    with whole_file(path) as made:
        _run(*_FLAGS, *flags, "-I", ".", "-isystem", str(_PACKAGE / "include"), "-c", source, "-o", str(made))


def _run(*arguments: str) -> None:
    """Run the compiler among the sources, so that the library holds no path of this machine."""
    done = subprocess.run([COMPILER, *arguments], cwd=_SOURCES, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise EngineBuildError(
            "operators of our own cannot be compiled: "
            + (errors or [f"{COMPILER} ended with code {done.returncode}"])[0],
            "install g++ 9 or newer, or set 'attention: openvino' and 'linear: openvino' in the recipe",
        )
