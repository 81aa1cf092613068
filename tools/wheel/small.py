"""Write the sources of the package ``draftproof``.

The names ``build`` and ``pipelines`` belong to this repository and are too general for somebody else's
site-packages. So the modules that its programs import are copied and renamed: ``pipelines.client`` becomes
``draftproof``, ``pipelines.errors`` becomes ``draftproof.errors``.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipelines.places import CODE, STAMP
from pipelines.version import Sources

PIPELINES = CODE / "pipelines"
CLIENT = PIPELINES / "client"
_HERE = Path(__file__).resolve().parent
ADDED = _HERE / "added"

MODULES = (
    "pipelines.__main__",
    "pipelines.version",
    "pipelines.validation.openai.command",
    "pipelines.upstreams.__main__",
    "pipelines.canary.__main__",
    "pipelines.front_door.access.__main__",
    "pipelines.text.chat_rendering",  # started by its path
)
"""Modules of the package; those that they import come with them."""


def write_small(folder: Path, sources: Sources) -> None:
    """Write the project that becomes the wheel."""
    package = folder / "draftproof"
    files = sources_of_package()
    for source, name in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8").replace("pipelines.client", "draftproof")
        (package / name).write_text(text.replace("pipelines", "draftproof"), encoding="utf-8")
    (package / "py.typed").touch()
    for file in data_of(files):
        (package / file).parent.mkdir(exist_ok=True)
        shutil.copy(PIPELINES / file, package / file)
    write_stamp(package, sources)
    shutil.copy(_HERE / "README.md", folder)
    project = (_HERE / "small.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(project.replace("@VERSION@", sources.version), encoding="utf-8")


def write_stamp(folder: Path, sources: Sources) -> None:
    """Write what ``pipelines.version`` reads of an installed package."""
    (folder / STAMP.name).write_text(json.dumps(dataclasses.asdict(sources)) + "\n", encoding="utf-8")


def sources_of_package() -> dict[Path, Path]:
    """Return each module of the wheel and its name there."""
    needed = set(CLIENT.rglob("*.py")).union(*map(imported_by, MODULES))
    needed -= {PIPELINES / "__init__.py"}  # the client's is the package's
    names = {path: path.relative_to(CLIENT if path.is_relative_to(CLIENT) else PIPELINES) for path in needed}
    return names | {path: Path(path.name) for path in ADDED.glob("*.py") if path.name != "__init__.py"}


def data_of(modules: dict[Path, Path]) -> list[Path]:
    """Return the files, relative to ``pipelines``, beside modules and in folders below that have none."""
    folders = {path.parent for path in modules}
    for folder in list(folders):
        folders.update(below for below in folder.iterdir() if below.is_dir() and not any(below.glob("*.py")))
    files = [path for path in PIPELINES.rglob("*.*") if path.suffix not in (".py", ".pyc")]
    return sorted(file.relative_to(PIPELINES) for file in files if file.parent in folders)


def imported_by(name: str) -> set[Path]:
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
    path = CODE.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None) if name.startswith("pipelines") else None
