"""Two front doors that share nothing, with HAProxy before them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.integration.conftest import wait_until
from tests.support.front_door_alone import FrontDoorAlone, front_door_alone
from tests.support.haproxy import HAPROXY, IS_MISSING, listens

NUM_DOORS = 2
_CONFIG = """
defaults
    mode http
    timeout connect 5s
    timeout client 600s
    timeout server 600s
    timeout check 2s
    retries 3
    option redispatch 1
    option http-buffer-request
    retry-on conn-failure empty-response
frontend openai
    bind 127.0.0.1:{port}
    default_backend doors
backend doors
    balance leastconn
    option httpchk GET /health
    http-check expect status 200
    default-server check inter 200ms fall 1 rise 1
"""


class Doors:
    """The front doors, each on a port that stays its own.

    ``servers``: ``host:port`` of each server's gRPC.
    """

    def __init__(self, folder: Path, servers: Sequence[str]) -> None:
        self._stack = ExitStack()
        self._servers = servers
        self._folders = [folder / f"door{number}" for number in range(NUM_DOORS)]
        self.ports = _free_ports(NUM_DOORS + 1)
        *self._ports, port = self.ports
        self._running: list[FrontDoorAlone] = []
        self._stacks = [self._stack.enter_context(ExitStack()) for _ in self._folders]
        for own in self._folders:
            own.mkdir()
            self._running.append(self._start(len(self._running)))
        self.url = f"http://127.0.0.1:{port}"
        self._stack.enter_context(_haproxy(folder, port, self._ports))

    def close(self) -> None:
        """Stop all of them."""
        self._stack.close()

    def kill(self, number: int) -> None:
        """Kill a front door without a warning."""
        os.kill(self._running[number].process.pid, signal.SIGKILL)

    def restore(self, number: int) -> None:
        """Start a front door that was killed again, and wait until it is healthy."""
        self._stacks[number].close()
        self._running[number] = self._start(number)

    def latest_words(self, address: str) -> set[str]:
        """Return what the front doors said last of a server: "ready", or "not ready"."""
        logs = [door.log.read_text().splitlines() for door in self._running]
        told = [[line for line in log if f"{address} is " in line] for log in logs]
        return {lines[-1].rpartition(" is ")[2] if lines else "ready" for lines in told}

    def _start(self, number: int) -> FrontDoorAlone:
        started = front_door_alone(self._folders[number], self._servers, self._ports[number])
        return self._stacks[number].enter_context(started)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def _haproxy(folder: Path, port: int, doors: Sequence[int]) -> Iterator[None]:
    if HAPROXY is None:
        raise AssertionError(IS_MISSING)
    config = folder / "haproxy.cfg"
    lines = [f"    server door{number} 127.0.0.1:{each}\n" for number, each in enumerate(doors)]
    config.write_text(_CONFIG.format(port=port) + "".join(lines))
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(config)])
    try:
        assert wait_until(lambda: listens(port)), "HAProxy does not listen"
        yield
    finally:
        process.kill()
        process.wait()
