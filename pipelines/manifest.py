"""Reads the files of an engine directory and checks them against its ``manifest.json``.

``build/files.py`` writes the manifest with the origin of the engine and the digest of each file.
Engines are always read through ``EngineFiles``, so that exactly the checked bytes are used, even if files
change.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipelines.errors import EngineLoadError

MANIFEST_NAME = "manifest.json"
_CHUNK_BYTES = 1 << 22


def sha256_bytes(content: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def sha256_file(path: Path, *, from_disk: bool = False) -> str:
    """Return the SHA-256 of a file's content, hexadecimal.

    Args:
        path: Path of the file.
        from_disk: Whether to bypass the kernel's page cache.
    """
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        if from_disk:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form (sorted keys, no spaces), hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return sha256_bytes(text.encode())


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest; None if the directory has no readable one and so is not an engine."""
    try:
        manifest = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
        is_whole = all(isinstance(entry["sha256"], str) for entry in manifest["files"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if is_whole else None


def engine_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of an engine's content: SHA-256 over the names and digests of all its files."""
    return sha256_json({name: entry["sha256"] for name, entry in manifest["files"].items()})


def read_checked(path: Path, sha256: str) -> bytes:
    """Read a file and check its digest.

    Args:
        path: Path of the file.
        sha256: Expected digest.

    Raises:
        EngineLoadError: The file is missing or has changed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise changed_file(path, sha256, error.strerror or repr(error)) from None
    check_digest(path, sha256, sha256_bytes(content))
    return content


def check_digest(path: Path, sha256: str, found: str) -> None:
    """Check the digest of a file's content.

    Raises:
        EngineLoadError: The digest is not ``sha256``.
    """
    if found != sha256:
        raise changed_file(path, sha256, f"sha256 {found}")


class EngineFiles:
    """The files of an engine directory, read against its manifest.

    Attributes:
        directory: Directory of the engine.
        manifest: The manifest as it was when this object was created.

    Args:
        directory: Directory of the engine.
        digest: Expected ``engine_digest``; None to accept any.

    Raises:
        EngineLoadError: There is no manifest, or that of another engine.
    """

    def __init__(self, directory: Path, digest: str | None = None) -> None:
        manifest = read_manifest(directory)
        if manifest is None:
            raise EngineLoadError(
                f"{directory} is not an engine: it has no readable {MANIFEST_NAME}",
                "run 'draftproof engines'",
            )
        self.directory = directory
        self.manifest = manifest
        if digest is not None and engine_digest(manifest) != digest:
            raise EngineLoadError(
                f"{directory} holds another engine than the one that the repository was rendered for: digest "
                f"{engine_digest(manifest)}, not {digest}",
                "run 'draftproof stop' and 'draftproof serve'",
            )

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self.directory / name

    def sha256(self, name: str) -> str:
        """Return the expected digest of a file.

        Raises:
            EngineLoadError: The manifest does not list the file.
        """
        entry = self.manifest["files"].get(name)
        if entry is None:
            raise EngineLoadError(
                f"{self.directory} is not an engine of the expected kind: {name} is not among its files "
                f"{', '.join(sorted(self.manifest['files']))}",
                "run 'draftproof engines' and 'draftproof repository'",
            )
        return str(entry["sha256"])

    def read(self, name: str) -> bytes:
        """Read a file and check its digest; raises EngineLoadError."""
        return read_checked(self.path(name), self.sha256(name))

    def changed(self, *, from_disk: bool = False) -> dict[Path, str]:
        """Return the files that are missing or have changed since the build, with what was found instead.

        Args:
            from_disk: See ``sha256_file``.
        """

        def found(path: Path) -> str:
            try:
                return f"sha256 {sha256_file(path, from_disk=from_disk)}"
            except OSError as error:
                return error.strerror or repr(error)

        names = sorted(self.manifest["files"])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = zip(names, pool.map(found, map(self.path, names)), strict=True)
        return {self.path(name): seen for name, seen in results if seen != f"sha256 {self.sha256(name)}"}

    def check_all(self, *, from_disk: bool = False) -> None:
        """Check all files; raises EngineLoadError for the first that has changed."""
        for path, found in self.changed(from_disk=from_disk).items():
            raise changed_file(path, self.sha256(path.name), found)


def checked_engine(directory: Path) -> EngineFiles:
    """Return the files of an engine after checking all of them; raises EngineLoadError."""
    files = EngineFiles(directory.resolve())
    files.check_all()
    return files


def changed_file(path: Path, sha256: str, found: str) -> EngineLoadError:
    """Return the error of a file that is not the one that was built.

    Args:
        path: The file.
        sha256: What its content must have.
        found: What there was instead.
    """
    return EngineLoadError(
        f"{path} is missing or was changed since the engine was built: {found}, not sha256 {sha256}",
        f"remove the engine (chmod -R u+w {path.parent}; rm -r {path.parent}) and run 'draftproof engines'",
    )
