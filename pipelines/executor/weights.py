"""Holds the weights of an engine in bytes that no other program can change.

OpenVINO lays the weights of a projection out for its kernels at the first step of a size, and seldom reads
the originals again. A server keeps the originals in a file without a name in its run directory: pages that
nobody reads take no memory, and pages that are read again are those that were checked
(docs/decisions/engines.md). Products of our own read the originals, which then stay in memory.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.manifest import changed_file

_LOG = logging.getLogger(__name__)
_MOUNTS = Path("/proc/self/mountinfo")


class Weights:
    """A copy of ``engine.bin``; it must outlive the network that is compiled from it.

    Attributes:
        data: uint8 [bytes of the file].
        is_in_file: Whether ``release`` gives memory back.

    Args:
        path: The file.
        sha256: Its expected digest, for the error message; the caller compares it.
        folder: Folder for a file without a name; None to hold the copy in memory.

    Raises:
        EngineLoadError: The file cannot be read.
    """

    def __init__(self, path: Path, sha256: str, folder: Path | None) -> None:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                mapped = None if folder is None else _mapped_file(folder, size)
                self.is_in_file = mapped is not None
                self._memory = mapped or mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                file.readinto(self._memory)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            reason = getattr(error, "strerror", None) or repr(error)
            raise changed_file(path, sha256, reason) from None
        self.data: npt.NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8)

    def release(self) -> None:
        """Give the memory back; what is read later comes from the file without a name."""
        if self.is_in_file:
            self._memory.madvise(mmap.MADV_DONTNEED)


def _is_memory(folder: Path) -> bool:
    """Return whether files of a folder are memory themselves (tmpfs, ramfs; ``man 5 proc_pid_mountinfo``)."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.partition(" - ") for line in _MOUNTS.read_text(encoding="utf-8").splitlines())
    return any(
        mount.split()[2] == number and kind.split()[0] in ("tmpfs", "ramfs") for mount, _, kind in mounts
    )


def _mapped_file(folder: Path, size: int) -> mmap.mmap | None:
    """Map a new file without a name; return None, with a warning, if that would free no memory."""
    try:
        if _is_memory(folder):
            raise OSError(errno.ENOTSUP, "its files are memory themselves (tmpfs)")
        free = shutil.disk_usage(folder).free
        if free < 2 * size:
            raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB free")
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, not a signal later
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        _LOG.warning(
            "%.1f GB of weights stay in memory twice, because a file of that size in %s cannot replace them: "
            "%s; provide a disk there with twice the size free, and restart",
            size / 1e9,
            folder,
            error.strerror,
        )
        return None
