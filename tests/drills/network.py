"""A network of the drills' own, in which packets are lost on request, and folders of limited size.

``make drills-fleet`` gives the program namespaces of its own, so nothing of the machine changes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_CHAIN = ("inet", "drills", "lost")


def bring_up() -> None:
    """Bring up the loopback of the network, and make the chain of rules for lost packets."""
    _run("ip", "link", "set", "lo", "up")
    _run("nft", "add", "table", *_CHAIN[:2])
    _run("nft", "add", "chain", *_CHAIN, "{ type filter hook input priority 0 ; }")


def reserve(ports: Iterable[int]) -> None:
    """Keep ports from connections of clients, which would take them while their server is down."""
    _RESERVED.write_text(",".join(map(str, ports)) + "\n")


@contextmanager
def lost_packets(port: int) -> Iterator[None]:
    """Lose all packets from and to a port during the block, without an answer to either side."""
    for side in ("dport", "sport"):
        _run("nft", "add", "rule", *_CHAIN, "tcp", side, str(port), "drop")
    try:
        yield
    finally:
        _run("nft", "flush", "chain", *_CHAIN)


def mount_small_disk(folder: Path, megabytes: int) -> None:
    """Mount an empty disk of limited size at a folder."""
    _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))


def unmount(folder: Path) -> None:
    """Remove the disk at a folder; its files are gone."""
    _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=60)
