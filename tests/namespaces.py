"""Containers by the kernel's namespaces alone, for machines without Docker: what a manifest mounts, no more.

A container gets a root of its own: the machine's programs and the mounts of the manifest, read only but for
those that the manifest lets be written; no capabilities; ports that are the pod's. Users are not told apart.
Needs ``unshare``, ``nsenter`` and ``setpriv`` of util-linux, and the right to make namespaces.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PYTHON_HOME = "/opt/draftproof/venv"  # of the image; here the environment of the tests
_PROGRAMS = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
_LOOPBACK_UP = """
import fcntl, socket, struct, sys, time
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Mount:
    """Of a file or a folder.

    Attributes:
        source: Outside.
        target: Absolute path inside.
        is_read_only: Whether the container may not write it.
    """

    source: Path
    target: str
    is_read_only: bool = False


@dataclass(frozen=True)
class Container:
    """What a manifest says of one."""

    command: Sequence[str]
    working_dir: str
    mounts: Sequence[Mount]
    empty: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Pod:
    """Containers that share a loopback; as a context manager it ends with all that runs in it.

    Args:
        scratch: Folder for their roots.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Pod:
        """The pod, whose loopback is up."""
        self._holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", _LOOPBACK_UP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "up\n":
            raise OSError("this kernel or this user has no namespaces")
        return self

    def __exit__(self, *error: object) -> None:
        """End its containers."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._holder.communicate()

    def start(self, container: Container, log: Path) -> subprocess.Popen[str]:
        """Start a container; the process is the one that its command becomes."""
        root = Path(tempfile.mkdtemp(dir=self._scratch))
        enter = ["nsenter", f"--target={self._holder.pid}", "--user", "--net", "--preserve-credentials"]
        with log.open("a") as output:
            process = subprocess.Popen(
                [*enter, "unshare", "--mount", "sh", "-c", _script(container, root)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                    "PYTHONDONTWRITEBYTECODE": "1",
                    **container.environment,
                },
            )
        self._running.append(process)
        return process


def _script(container: Container, root: Path) -> str:
    """Mounts a root, then becomes the command in it."""
    lines = ["set -e", f"mount -t tmpfs tmpfs {root}"]
    for name in _PROGRAMS:
        path = Path("/") / name
        if path.is_symlink():
            lines.append(f"cp --no-dereference {path} {root}/{name}")
        elif path.is_dir():
            lines += [f"mkdir {root}/{name}", f"mount --rbind {path} {root}/{name}"]
    places = {each: [f"mount -t tmpfs tmpfs {root}{each}"] for each in container.empty}
    for mount in (Mount(Path(sys.prefix), PYTHON_HOME, is_read_only=True), *_base(), *container.mounts):
        places[mount.target] = _bound(mount, shlex.quote(f"{root}{mount.target}"))
    for target in sorted(places):  # what lies in another one comes after it
        if not Path(target).is_file():
            lines.append(f"mkdir -p {shlex.quote(root.as_posix() + target)}")
        lines += places[target]
    lines.append(f"mount -o remount,ro {root}")
    inside = f"cd {shlex.quote(container.working_dir)} && exec {shlex.join(container.command)}"
    confined = ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "sh", "-c", inside]
    return "\n".join([*lines, f"exec chroot {root} {shlex.join(confined)}"])


def _base() -> list[Mount]:
    """The Python that the environment was made with, unless it is among the machine's programs."""
    if Path(sys.base_prefix).parts[1] in _PROGRAMS:
        return []
    return [Mount(Path(sys.base_prefix), sys.base_prefix, is_read_only=True)]


def _bound(mount: Mount, target: str) -> list[str]:
    bind = f"mount --bind {shlex.quote(str(mount.source))} {target}"
    return [bind, f"mount -o remount,bind,ro {target}"] if mount.is_read_only else [bind]
