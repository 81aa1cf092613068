"""Files that are there as a whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file, readable by all; its folder is made if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)
