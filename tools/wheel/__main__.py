"""Build the wheel ``draftproof``: ``python -m tools.wheel``, or ``make wheel``.

The names ``build`` and ``pipelines`` belong to this repository and are too general for somebody else's
site-packages. So the modules of the client, and those that compare OpenAI-compatible servers, are copied and
renamed: ``pipelines.client`` becomes ``draftproof``, ``pipelines.errors`` becomes ``draftproof.errors``. The
version is the one in ``pyproject.toml``.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.errors import DraftproofError
from pipelines.program import EXIT_PASS, run_program

ROOT = Path(__file__).resolve().parents[2]
PIPELINES = ROOT / "pipelines"
CLIENT = PIPELINES / "client"

_HERE = Path(__file__).resolve().parent
ADDED = _HERE / "added"
DATA = (  # files that are no modules; project.toml names their folders
    "validation/verify.html",
    "command_line/general_prompts.json",
)
_PIP = ("pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheel", description="Build the client's wheel.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheel (dist/)")
    options = parser.parse_args(arguments)

    def work() -> int:
        print(build_wheel(options.output))
        return EXIT_PASS

    return run_program(work)


def build_wheel(output: Path) -> Path:
    """Build the wheel with this environment's setuptools.

    Args:
        output: Folder that gets the wheel.

    Returns:
        The wheel.

    Raises:
        DraftproofError: pip could not build it.
    """
    version = project_version()
    with tempfile.TemporaryDirectory(prefix="draftproof-wheel-") as scratch:
        write_sources(Path(scratch), version)
        command = [sys.executable, "-m", *_PIP, "--no-build-isolation", "--wheel-dir", str(output), scratch]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DraftproofError(
            f"the wheel could not be built: {' '.join(done.stderr.split())}",
            "run 'make wheel', which installs the packages of requirements/test.txt",
        )
    return output / f"draftproof-{version}-py3-none-any.whl"


def project_version() -> str:
    """Return the version in ``pyproject.toml``."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert found is not None, "pyproject.toml has a version"
    return found[1]


def write_sources(folder: Path, version: str) -> None:
    """Write the project that becomes the wheel."""
    package = folder / "draftproof"
    for source, name in _sources().items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace("pipelines.client", "draftproof")
        (package / name).write_text(text.replace("pipelines", "draftproof"), encoding="utf-8")
    (package / "py.typed").touch()
    for file in DATA:
        (package / file).parent.mkdir(exist_ok=True)
        shutil.copy(PIPELINES / file, package / file)
    shutil.copy(ROOT / "LICENSE", folder)
    shutil.copy(_HERE / "README.md", folder)
    project = (_HERE / "project.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(project.replace("@VERSION@", version), encoding="utf-8")


def _sources() -> dict[Path, Path]:
    """Return each file of the wheel and its name there."""
    client = {path for path in CLIENT.rglob("*.py") if path.name != "__main__.py"}
    needed = client | _imported_by("pipelines.validation.openai.command")
    needed -= {PIPELINES / "__init__.py"}  # the client's is the package's
    names = {path: path.relative_to(CLIENT if path.is_relative_to(CLIENT) else PIPELINES) for path in needed}
    return names | {path: Path(path.name) for path in ADDED.glob("*.py") if path.name != "__init__.py"}


def _imported_by(name: str) -> set[Path]:
    """Return the files of a module and of all that it imports from ``pipelines``.

    Args:
        name: Dotted name of the module.
    """
    found: set[Path] = set()
    waiting = [name]
    while waiting:
        file = _file(waiting.pop())
        if file is not None and file not in found:
            found.add(file)
            waiting += _names(file)
    return found


def _names(file: Path) -> Iterator[str]:
    """Yield the dotted names in a file's imports, and those of the packages around them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in imported:
            parts = name.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _file(name: str) -> Path | None:
    """Return the file of a module of ``pipelines``; None if a name is none."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None) if name.startswith("pipelines") else None


if __name__ == "__main__":
    sys.exit(main())
