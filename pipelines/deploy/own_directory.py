"""The run directory of a server in a container: its alone, and filled from what was rendered.

A rollout renders and removes models there, and the router reads its weights there. So it lies on a volume
that is written and stays, while the checkout and what ``make repository`` left there are read only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

from pipelines.errors import ServerStartError
from pipelines.whole_file import write_whole

LOCK = "server.lock"
_FILLED = "rendered.json"  # says from what the directory was filled
_REPOSITORY = "model_repository"
_LAUNCH = "launch.json"


def have_alone(directory: Path) -> None:
    """Keep other servers out until this process ends, whatever program it becomes.

    Two would take each other's sockets, and both would follow one table of arms.

    Raises:
        ServerStartError: Another server has the directory, or it cannot be written.
    """
    path = directory / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ServerStartError(
            "the run directory cannot be written",
            values=f"{path}: {error.strerror}, user {os.getuid()}",
            limit="a rendered repository, on a volume that the server's user may write",
            remedy="run 'make repository'; give the directory to that user",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ServerStartError(
            "another server has the run directory",
            values=str(path),
            limit="one server for each run directory",
            remedy="end that one first; a second server needs a volume of its own",
        ) from None
    os.set_inheritable(lock, True)


def fill(directory: Path, rendered: Path) -> bool:
    """Make a run directory that of what was rendered, unless it is already.

    What a rollout changed since stays. Where something else was rendered, it begins anew: the repository is
    replaced as a whole, and the table of arms goes, since the pairs that it names do. Killed in the middle,
    it is done again.

    Args:
        directory: That nobody else writes.
        rendered: ``.run/<recipe>`` as ``make repository`` left it.

    Returns:
        Whether anything was replaced.

    Raises:
        ServerStartError: Nothing was rendered there, or it cannot be copied.
    """
    try:
        filled = json.dumps({"sha256": _sha256(rendered)}) + "\n"
        if _read(directory / _FILLED) == filled:
            return False
        scratch = directory / ".rendered"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(rendered / _REPOSITORY, scratch / "new")
        (directory / _FILLED).unlink(missing_ok=True)
        if (directory / _REPOSITORY).exists():
            (directory / _REPOSITORY).rename(scratch / "old")
        (directory / "arms.json").unlink(missing_ok=True)
        (scratch / "new").rename(directory / _REPOSITORY)
        write_whole(directory / _LAUNCH, (rendered / _LAUNCH).read_text(encoding="utf-8"))
        write_whole(directory / _FILLED, filled)
        shutil.rmtree(scratch)
    except (OSError, shutil.Error) as error:
        raise ServerStartError(
            "the run directory cannot be filled from what was rendered",
            values=f"{rendered} to {directory}: {error}",
            limit=f"{_REPOSITORY} and {_LAUNCH} there, room and write access here",
            remedy="run 'make repository' where the checkout lies; check the volume",
        ) from None
    return True


def _sha256(rendered: Path) -> str:
    """Of the names and the content of all that is copied."""
    digest = hashlib.sha256((rendered / _LAUNCH).read_bytes())
    for path in sorted((rendered / _REPOSITORY).rglob("*")):
        if path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(rendered)} {content}\n".encode())
    return digest.hexdigest()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
