"""Splits a root filesystem into the layers of an image, and refuses what an image must not hold."""

from __future__ import annotations

import io
import re
import stat
import tarfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from pipelines.errors import DraftproofError

MOST_BYTES = 1_000_000_000
"""Limit for all files of an image, unpacked."""

LAYERS = ("debian", "environment", "code")
"""From the one that changes least often to the one that changes most often."""

_PREFIXES = {"environment": "opt/draftproof/venv/", "code": "opt/draftproof/code/"}
# Runtimes mount these or write them; logs, caches and the addresses of mirrors belong to this machine.
_OF_THE_MACHINE = re.compile(
    r"(dev|proc|sys|run|tmp|var/cache|var/log|var/lib/apt|var/tmp)/.+"
    r"|etc/(apt(/.*)?|hostname|hosts|resolv\.conf|machine-id)|var/lib/dpkg/.*-old|etc/.*-"
)
_MAY_BE_WRITABLE = ("tmp",)


def split(root: Path, folder: Path, added: Mapping[str, bytes], created: int) -> dict[str, int]:
    """Write the layers as tar files, named after them.

    Args:
        root: The tar file of the root filesystem.
        folder: Where to write.
        added: Further files of the last layer, by their paths.
        created: The time of these files.

    Returns:
        The bytes of the files in each layer.

    Raises:
        DraftproofError: The root has files with setuid or setgid, or directories that everyone may write to,
            or is larger than ``MOST_BYTES``.
    """
    sizes = dict.fromkeys(LAYERS, 0)
    refused = []
    with ExitStack() as opened:
        read = opened.enter_context(tarfile.open(root))
        written = {
            name: opened.enter_context(tarfile.open(folder / f"{name}.tar", "w", format=tarfile.PAX_FORMAT))
            for name in LAYERS
        }
        for member in read:
            member.name = member.name.removeprefix("./").removeprefix(".")
            member.linkname = member.linkname.removeprefix("./") if member.islnk() else member.linkname
            if not member.name or _OF_THE_MACHINE.fullmatch(member.name):
                continue
            if _is_refused(member):
                refused.append(f"{member.name} {stat.filemode(member.mode)}")
            layer = _layer(member.name)
            sizes[layer] += member.size if member.isreg() else 0
            written[layer].addfile(member, read.extractfile(member) if member.isreg() else None)
        for path, content in sorted(added.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(content), created, 0o644
            sizes[LAYERS[-1]] += member.size
            written[LAYERS[-1]].addfile(member, io.BytesIO(content))
    if refused:
        raise DraftproofError(
            "the image would hold files that give rights away",
            values=", ".join(refused),
            limit="no setuid or setgid files; no directory that everyone may write to but /tmp",
            remedy="take the rights away in the Dockerfile",
        )
    if sum(sizes.values()) > MOST_BYTES:
        raise DraftproofError(
            "the image is too large",
            values=", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items()),
            limit=f"{MOST_BYTES / 1e6:.0f} MB unpacked",
            remedy="remove in the Dockerfile what no server needs",
        )
    return sizes


def _layer(name: str) -> str:
    return next((layer for layer, prefix in _PREFIXES.items() if f"{name}/".startswith(prefix)), LAYERS[0])


def _is_refused(member: tarfile.TarInfo) -> bool:
    if member.isreg():
        return bool(member.mode & (stat.S_ISUID | stat.S_ISGID))
    return member.isdir() and bool(member.mode & stat.S_IWOTH) and member.name not in _MAY_BE_WRITABLE
