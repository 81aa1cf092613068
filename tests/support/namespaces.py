"""Containers made of kernel namespaces, for machines without Docker.

A container gets a root of its own: the machine's programs and the mounts of the manifest, read-only unless
the manifest makes them writable. It has no capabilities and uses the pod's ports. Users are not separated.
Or its root is that of an image: then it also has processes, devices and a user of its own, which needs root.
Two pods are two networks with a virtual cable between them. Needs util-linux (``unshare``, ``nsenter``,
``setpriv``), the right to create namespaces, and ``ip`` (iproute2) for a second pod.
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
_IMAGE_DEVICES = ("full", "null", "random", "urandom", "zero")
_NUM_USERS = 65536
# Waits for its users to be mapped, where it has a namespace of them.
_OWN_USERS = """
import ctypes, sys
if ctypes.CDLL(None).unshare(0x10000000 | 0x40000000):  # CLONE_NEWUSER, CLONE_NEWNET
    sys.exit(1)
print("alone", flush=True)
sys.stdin.readline()
"""
_LOOPBACK_UP = """
import fcntl, socket, struct, sys, time
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

    ``image``: root of an image, instead of the machine's programs.
    """

    command: Sequence[str]
    working_dir: str
    mounts: Sequence[Mount]
    empty: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    image: Path | None = None
    user: int = 0


class Pod:
    """Containers that share a loopback; leaving its context ends everything that runs in it.

    Attributes:
        address: The address at which the other pod reaches this one, if there are two.

    Args:
        beside: Another pod, already running; this one gets a network of its own and can reach it.
    """

    def __init__(self, scratch: Path, beside: Pod | None = None) -> None:
        self.address = "10.77.0.1" if beside is None else "10.77.0.2"
        self._scratch = scratch
        self._beside = beside
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Pod:
        """Start the pod, with its loopback up."""
        beside = [] if self._beside is None else [*self._beside.enter("user"), "unshare", "--net"]
        program = _LOOPBACK_UP if beside else _OWN_USERS + _LOOPBACK_UP
        self._holder = subprocess.Popen(
            [*beside, sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        if not beside and self._holder.stdout.readline() == "alone\n":
            self._map_users()
        if self._holder.stdout.readline() != "up\n":
            raise OSError("this kernel or this user has no namespaces")
        if self._beside is not None:
            other = f"ip link add name cable type veth peer name cable netns {self._holder.pid}"
            for pod, first in ((self._beside, other), (self, "true")):
                lines = [first, f"ip addr add {pod.address}/24 dev cable", "ip link set cable up"]
                if subprocess.run([*pod.enter("user", "net"), "sh", "-ec", "; ".join(lines)]).returncode:
                    raise OSError("two networks cannot be joined here")
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

    def enter(self, *namespaces: str) -> list[str]:
        """Return a command prefix that runs what follows in some of the pod's namespaces."""
        names = [f"--{name}" for name in namespaces]
        return ["nsenter", f"--target={self._holder.pid}", *names, "--preserve-credentials"]

    def start(self, container: Container, log: Path) -> subprocess.Popen[str]:
        """Start a container and return the process of its command."""
        root = Path(tempfile.mkdtemp(dir=self._scratch))
        unshare, script = ["unshare", "--mount"], _script(container, root)
        if container.image is not None:
            unshare += ["--pid", "--fork", "--kill-child", "--ipc", "--uts"]
            script = _image_script(container, container.image, root)
        with log.open("a") as output:
            process = subprocess.Popen(
                [*self.enter("user", "net"), *unshare, "sh", "-c", script],
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


def _image_script(container: Container, image: Path, root: Path) -> str:
    """Return a script that makes an image the root, then replaces itself with the command."""
    places = {mount.target: _bound(mount, shlex.quote(f"{root}{mount.target}")) for mount in container.mounts}
    for each in ("/dev", "/dev/shm", *container.empty):
        places[each] = [f"mount -t tmpfs -o mode={'755' if each == '/dev' else '1777'} tmpfs {root}{each}"]
    lines = ["set -e", "mount -t proc proc /proc", f"mount --bind {image} {root}"]
    for target in sorted(places):
        lines += [f"mkdir -p {shlex.quote(f'{root}{target}')}", *places[target]]
        if target == "/dev":
            for name in _IMAGE_DEVICES:
                lines.append(f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}")
            lines.append(f"ln -s /proc/self/fd {root}/dev/fd")
    lines += [f"mount -t proc proc {root}/proc", f"mount -o remount,bind,ro {root}"]
    program = f"cd {shlex.quote(container.working_dir)} && exec {shlex.join(container.command)}"
    user = [f"--reuid={container.user}", f"--regid={container.user}", "--clear-groups"]
    confined = ["setpriv", *user, *_CONFINED, "sh", "-c", program]
    return "\n".join([*lines, f"exec chroot {root} {shlex.join(confined)}"])


def _script(container: Container, root: Path) -> str:
    """Return a script that mounts a root, then replaces itself with the command."""
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
    files = {mount.target for mount in container.mounts if mount.source.is_file()}
    for target in sorted(places):  # mount a folder before what lies in it
        inside = root.as_posix() + target
        if target in files and not Path(target).is_file():
            lines.append(f"mkdir -p {shlex.quote(str(Path(inside).parent))} && touch {shlex.quote(inside)}")
        elif target not in files:
            lines.append(f"mkdir -p {shlex.quote(inside)}")
        lines += places[target]
    lines.append(f"mount -o remount,ro {root}")
    program = f"cd {shlex.quote(container.working_dir)} && exec {shlex.join(container.command)}"
    confined = ["setpriv", *_CONFINED, "sh", "-c", program]
    return "\n".join([*lines, f"exec chroot {root} {shlex.join(confined)}"])


def _base() -> list[Mount]:
    """Return the Python that the environment was made with, unless it is among the machine's programs."""
    if Path(sys.base_prefix).parts[1] in _PROGRAMS:
        return []
    return [Mount(Path(sys.base_prefix), sys.base_prefix, is_read_only=True)]


def _bound(mount: Mount, target: str) -> list[str]:
    bind = f"mount --bind {shlex.quote(str(mount.source))} {target}"
    return [bind, f"mount -o remount,bind,ro {target}"] if mount.is_read_only else [bind]
