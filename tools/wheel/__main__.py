"""Build the two packages: ``python -m tools.wheel``, or ``make wheel``.

``draftproof``, a wheel and its sources, has the command, the client and ``verify``, and runs anywhere.
``draftproof-serve``, which its extra ``serve`` requires, is the checkout without tests and tools, for Linux
on x86-64, with compiled operators.
docs/decisions/engines.md says why there are two. Their version is the one in ``pyproject.toml``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.errors import DraftproofError
from pipelines.places import CODE
from pipelines.program import EXIT_PASS, run_program
from pipelines.version import Sources
from tools.wheel.small import write_small, write_stamp

_HERE = Path(__file__).resolve().parent
_BUILD = """
import sys
from setuptools import build_meta
folder, *steps = sys.argv[1:]  # setuptools writes its own there
for step in steps:
    name = getattr(build_meta, step)(folder)
print(name)
"""
SERVED = ("build", "pipelines", "model_repository", "engines/demo_pair")
# Needs files that are not in the package: a trained head of 35 MB.
_LEFT_OUT = ("build/recipes/qwen2-5-coder-head.yaml",)
_GLIBC = 35  # glibc 2.35, which nvidia-pytriton needs
_GLIBCXX = (3, 4, 30)  # libstdc++ of the distributions that have it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheel", description="Build both packages.")
    parser.add_argument("--output", type=Path, default=CODE / "dist", help="folder for them (dist/)")
    output = parser.parse_args(arguments).output

    def work() -> int:
        for build in (build_small, build_serve):
            print(build(output), flush=True)
        return EXIT_PASS

    return run_program(work)


def build_small(output: Path) -> Path:
    """Build ``draftproof`` and return its wheel.

    Args:
        output: Folder that gets the wheel and the sources.

    Raises:
        DraftproofError: setuptools could not build it.
    """
    return _built(output, write_small, "build_sdist", "build_wheel")


def build_serve(output: Path) -> Path:
    """Build ``draftproof-serve`` and return its wheel; see ``build_small``.

    Raises:
        DraftproofError: setuptools could not build it, or operators that were compiled here would not load on
            every machine that nvidia-pytriton runs on.
        EngineBuildError: The operators cannot be compiled.
    """
    return _built(output, _write_serve, "build_wheel")


def _built(output: Path, write: Callable[[Path, Sources], None], *steps: str) -> Path:
    sources, output = Sources.find(), output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="draftproof-wheel-") as scratch:
        write(Path(scratch), sources)
        shutil.copy(CODE / "LICENSE", scratch)
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, str(output), *steps],
            cwd=scratch,
            env={**os.environ, "SOURCE_DATE_EPOCH": _committed_at()},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise DraftproofError(
            f"the package could not be built: {' '.join(done.stderr.split())}",
            "run 'make wheel', which installs the packages of requirements/test.txt",
        )
    return output / done.stdout.split()[-1]


def _committed_at() -> str:
    """Return the time for all files of the packages, so that a commit always gives the same ones."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=CODE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "315532800"  # 1980, where the times of a zip begin


def _write_serve(folder: Path, sources: Sources) -> None:
    """Write the project ``draftproof-serve``."""
    package = folder / "draftproof_serve"
    shutil.copytree(_HERE / "serve", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in SERVED:
        shutil.copytree(CODE / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _LEFT_OUT:
        (package / name).unlink()
    write_stamp(package / "pipelines", sources)
    _write_operators(package / "build" / "operators")
    shutil.copy(CODE / "THIRD_PARTY_NOTICES.md", folder)
    shutil.copy(_HERE / "README.md", folder)
    project = (_HERE / "serve.toml").read_text(encoding="utf-8").replace("@VERSION@", sources.version)
    project = project.replace("@DEPENDENCIES@\n", required_by_servers())
    (folder / "pyproject.toml").write_text(project, encoding="utf-8")
    # Its Python is for every version, and its compiled part for one platform; setuptools knows no such wheel.
    tag = f"[bdist_wheel]\nplat_name = manylinux_2_{_GLIBC}_x86_64\n"
    (folder / "setup.cfg").write_text(tag, encoding="utf-8")


def required_by_servers() -> str:
    """Return the lines of the extra ``run`` in ``pyproject.toml``."""
    text = (CODE / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^run = \[\n(.+?)^\]", text, re.MULTILINE | re.DOTALL)
    assert found is not None, "pyproject.toml has the extra run"
    return found[1]


def _write_operators(folder: Path) -> None:
    # OpenVINO is not imported for the small package.
    from build.operators.library import SHIPPED, compiled_library

    library = compiled_library()
    symbols = re.findall(rb"GLIBC(XX)?_([\d.]+)", library)
    for kind, version in symbols:
        number = tuple(map(int, version.split(b".")))
        if number > (_GLIBCXX if kind else (2, _GLIBC)):
            raise DraftproofError(
                f"the operators need GLIBC{kind.decode()} {version.decode()}, and machines with glibc "
                f"2.{_GLIBC} may lack it",
                "build the packages where g++ is 12 or older, such as Debian 12 or Ubuntu 22.04",
            )
    (folder / SHIPPED.name).write_bytes(library)


if __name__ == "__main__":
    sys.exit(main())
