"""``manifest.json``: what an engine directory was made from and what it must still hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pipelines.errors import EngineLoadError

MANIFEST_NAME = "manifest.json"
_CHUNK_BYTES = 1 << 22


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form (sorted keys, no spaces), hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(directory: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a finished directory; must be the last file that is written into it.

    Args:
        directory: Engine directory, all other files in place.
        content: What the caller knows of the origin: fingerprint, recipe hash, versions.
    """
    files = sorted(path for path in directory.iterdir() if path.name != MANIFEST_NAME)
    manifest = {
        **content,
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": {path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size} for path in files},
    }
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest, or None if the directory has none that can be read: then it is not an engine."""
    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return None
    files = manifest.get("files") if isinstance(manifest, dict) else None
    is_whole = isinstance(files, dict) and all(isinstance(entry, dict) for entry in files.values())
    return manifest if is_whole else None


def is_complete(directory: Path, fingerprint: str) -> bool:
    """Whether a directory holds the engine of this fingerprint, judged by names and sizes alone."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.get("fingerprint") != fingerprint:
        return False
    return all(
        (directory / name).is_file() and (directory / name).stat().st_size == entry.get("bytes")
        for name, entry in manifest["files"].items()
    )


def verify_manifest(directory: Path) -> dict[str, Any]:
    """Check every file of an engine directory against its hash.

    Returns:
        The manifest.

    Raises:
        EngineLoadError: There is no manifest, or a file is missing or was changed since the build.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise EngineLoadError(
            f"{directory} is not an engine",
            values="no readable manifest.json",
            limit="an engine directory has a manifest of its files",
            remedy="run python -m build.engines",
        )
    for name, entry in manifest["files"].items():
        path = directory / name
        if not path.is_file() or sha256_file(path) != entry["sha256"]:
            raise EngineLoadError(
                f"{path} is missing or was changed since the engine was built",
                values=f"expected sha256 {entry['sha256']}",
                limit="engines are immutable",
                remedy=f"delete {directory} and run python -m build.engines",
            )
    return manifest
