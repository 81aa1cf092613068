"""Find the modules of ``pipelines`` that a module imports, itself or through others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None) if name.startswith("pipelines") else None
