"""Write ``manifest.json``; ``pipelines/manifest.py`` reads it and checks files against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipelines.manifest import MANIFEST_NAME, read_manifest, sha256_file


def write_manifest(directory: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a directory, after all other files.

    Args:
        directory: Engine directory with all its other files.
        content: Further entries on the origin: fingerprint, recipe hash, versions.
    """
    files = sorted(path for path in directory.iterdir() if path.name != MANIFEST_NAME)
    manifest = {
        **content,
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": {path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size} for path in files},
    }
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def is_complete(directory: Path, fingerprint: str) -> bool:
    """Return whether a directory has this fingerprint and all its files, judged by names and sizes alone."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.get("fingerprint") != fingerprint:
        return False
    return all(
        (directory / name).is_file() and (directory / name).stat().st_size == entry.get("bytes")
        for name, entry in manifest["files"].items()
    )
