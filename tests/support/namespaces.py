"""Containers made of kernel namespaces, for machines without Docker.

A container gets a root of its own: the machine's programs and the mounts of the manifest, read-only unless
the manifest makes them writable. It has no capabilities and uses the pod's ports. Users are not separated.
Needs util-linux (``nsenter``, ``setpriv``, ``unshare``) and the right to create namespaces.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PYTHON_HOME = "/opt/draftproof/venv"  # of the image; here that of the tests
_PROGRAMS = ("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr")
_CONFINED = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_NUM_USERS = 65536
# Waits for its users to be mapped.
_OWN_NETWORK = """
import ctypes, fcntl, socket, struct, sys
if ctypes.CDLL(None).unshare(0x10000000 | 0x40000000):  # CLONE_NEWUSER, CLONE_NEWNET
    sys.exit(1)
print("alone", flush=True)
sys.stdin.readline()
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
print("up", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Mount:
    """A mount of a file or folder; ``is_read_only``: whether the container may not write to it."""

    source: Path
    target: str
    is_read_only: bool = False


@dataclass(frozen=True)
class Container:
    """A container as a manifest describes it.

    ``root``: an image's files; None for this machine's programs. ``user``: who runs the command.
    """

    command: Sequence[str]
    working_dir: str
    mounts: Sequence[Mount]
    empty: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    user: int = 0


class Pod:
    """Containers that share a loopback; leaving its context ends everything that runs in it."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Pod:
        """Start the pod, with its loopback up."""
        self._holder = subprocess.Popen(
            [sys.executable, "-c", _OWN_NETWORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() == "alone\n":
            self._map_users()
        if self._holder.stdout.readline() != "up\n":
            raise OSError("this kernel or this user has no namespaces")
        return self

    def _map_users(self) -> None:
        """Map all users if we are root, else ours alone, which becomes root inside."""
        number = _NUM_USERS if os.getuid() == 0 else 1
        process = Path("/proc") / str(self._holder.pid)
        if number == 1:
            (process / "setgroups").write_text("deny")
        (process / "uid_map").write_text(f"0 {os.getuid()} {number}")
        (process / "gid_map").write_text(f"0 {os.getgid()} {number}")
        assert self._holder.stdin is not None
        self._holder.stdin.write("\n")
        self._holder.stdin.flush()

    def __exit__(self, *error: object) -> None:
        """Stop its containers."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._holder.communicate()

    def start(self, container: Container, log: Path) -> subprocess.Popen[str]:
        """Start a container and return the process of its command."""
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
    """Return a script that mounts a root, then replaces itself with the command."""
    lines = ["set -e", f"mount -t tmpfs tmpfs {root}"]
    if container.root is not None:
        lines[1] = f"mount --bind {container.root} {root}"
    for name in _PROGRAMS if container.root is None else ("dev", "proc", "sys"):
        path = Path("/") / name
        if path.is_symlink():
            lines.append(f"cp --no-dereference {path} {root}/{name}")
        elif path.is_dir():
            lines += [f"mkdir -p {root}/{name}", f"mount --rbind {path} {root}/{name}"]
    places = {each: [f"mount -t tmpfs tmpfs {root}{each}"] for each in container.empty}
    tests = (Mount(Path(sys.prefix), PYTHON_HOME, is_read_only=True), *_base())
    for mount in (*(tests if container.root is None else ()), *container.mounts):
        places[mount.target] = _bound(mount, shlex.quote(f"{root}{mount.target}"))
    files = {mount.target for mount in container.mounts if mount.source.is_file()}
    for target in sorted(places):  # mount a folder before what lies in it
        inside = root.as_posix() + target
        if target in files and not Path(target).is_file():
            lines.append(f"mkdir -p {shlex.quote(str(Path(inside).parent))} && touch {shlex.quote(inside)}")
        elif target not in files:
            lines.append(f"mkdir -p {shlex.quote(inside)}")
        lines += places[target]
    lines.append(f"mount -o remount,{'ro' if container.root is None else 'bind,ro'} {root}")
    program = f"cd {shlex.quote(container.working_dir)} && exec {shlex.join(container.command)}"
    user = [f"--reuid={container.user}", f"--regid={container.user}", "--clear-groups"]
    confined = ["setpriv", *_CONFINED, *(user if container.user else ()), "sh", "-c", program]
    return "\n".join([*lines, f"exec chroot {root} {shlex.join(confined)}"])


def _base() -> list[Mount]:
    """Return the Python that the environment was made with, unless it is among the machine's programs."""
    if Path(sys.base_prefix).parts[1] in _PROGRAMS:
        return []
    return [Mount(Path(sys.base_prefix), sys.base_prefix, is_read_only=True)]


def _bound(mount: Mount, target: str) -> list[str]:
    bind = f"mount --bind {shlex.quote(str(mount.source))} {target}"
    return [bind, f"mount -o remount,bind,ro {target}"] if mount.is_read_only else [bind]
