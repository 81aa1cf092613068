"""Makes writable copies of engines, and damages them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

# Begins a command whose process obeys file modes, which root's usually does not.
AS_OWNER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def writable_copy(engine: Path, destination: Path) -> Path:
    """Copy an engine directory, make its files writable, and return the copy."""
    shutil.copytree(engine, destination)
    destination.chmod(0o755)
    for path in destination.iterdir():
        path.chmod(0o644)
    return destination


def flip_a_bit(path: Path) -> None:
    """Flip one bit of a file, as a failing disk does; its size and times stay."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def cut_in_half(path: Path) -> None:
    """Truncate a file to its first half."""
    os.truncate(path, path.stat().st_size // 2)
