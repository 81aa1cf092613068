"""Remembers the digests of files, so that gigabytes are read only when they have changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pipelines.atomic_file import write_whole
from pipelines.manifest import EngineFiles, changed_file, sha256_file
from pipelines.places import RUN

_KNOWN = RUN / "digests.json"


def file_digests(
    paths: Iterable[Path], advance: Callable[[int], None] = lambda num_bytes: None
) -> dict[Path, str]:
    """Return the SHA-256 of files, without reading those that have the size and times of their last reading.

    Args:
        paths: The files.
        advance: Called with the bytes of each file when its digest is known.
    """
    known = _read_known()
    digests, found = {}, dict(known)
    for path in sorted(paths):
        status = path.stat()
        state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        name = str(path.resolve())
        if known.get(name, [None])[:-1] != state:
            found[name] = [*state, sha256_file(path)]
        digests[path] = str(found[name][-1])
        advance(status.st_size)
    if found != known:
        text = json.dumps({name: each for name, each in found.items() if Path(name).exists()})
        with suppress(OSError):  # in a container that may not write there, every start reads all files
            _KNOWN.parent.mkdir(parents=True, exist_ok=True)
            write_whole(_KNOWN, text)
    return digests


def known_engine(directory: Path) -> EngineFiles:
    """Return the files of an engine after checking their digests (``file_digests``).

    The server that loads the engine reads and checks every byte.

    Raises:
        EngineLoadError: A file is missing or has changed.
    """
    files = EngineFiles(directory.resolve())
    for name in files.manifest["files"]:
        path = files.path(name)
        try:
            found = file_digests([path])[path]
        except OSError as error:
            raise changed_file(path, files.sha256(name), error.strerror or repr(error)) from None
        if found != files.sha256(name):
            raise changed_file(path, files.sha256(name), f"sha256 {found}")
    return files


def _read_known() -> dict[str, list[int | str]]:
    try:
        return dict(json.loads(_KNOWN.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
