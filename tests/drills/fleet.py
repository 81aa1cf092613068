"""Three servers of the tests' pair and their front doors, which are started again after each fault."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import astuple
from pathlib import Path
from types import TracebackType

from build.repository import render_recipe
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import PortInUseError
from pipelines.process import processes_with
from pipelines.upstreams.fleet.placement import placed
from pipelines.upstreams.fleet.server import FleetServer
from pipelines.upstreams.settings import UpstreamSetting
from pipelines.wire.request import CompletionRequest
from tests.drills.doors import Doors
from tests.drills.network import bring_up, mount_small_disk, reserve, unmount
from tests.integration.conftest import tiny_recipe, wait_until
from tests.support.tiny_engines import build_tiny_pair

NUM_SERVERS = 3
_RETURNS_WITHIN_S = 300.0
_DISK_MEGABYTES = 64


class Fleet:
    """The servers, the front doors and HAProxy.

    ``directories``: the run directory of each server, on a disk of its own.
    """

    def __init__(self, folder: Path) -> None:
        bring_up()
        draft, self.target = build_tiny_pair(folder / "engines", draft="noisy")
        other = build_tiny_pair(folder / "other_engines", seed=1, draft="noisy")
        self._other = render_recipe(tiny_recipe("tiny"), *other, folder / "other").parent
        self.directories: list[Path] = []
        self.ports = [Ports.free() for _ in range(NUM_SERVERS)]
        self.servers: list[Server] = []
        with ExitStack() as started:
            for number in range(NUM_SERVERS):
                disk = folder / f"server{number}"
                disk.mkdir()
                mount_small_disk(disk, _DISK_MEGABYTES)
                started.callback(unmount, disk)
                self.directories.append(render_recipe(tiny_recipe("tiny"), draft, self.target, disk).parent)
            started.callback(self._stop_servers)
            for number in range(NUM_SERVERS):
                self.servers.append(self._start(number))
            for server in self.servers:
                server.wait_ready(_RETURNS_WITHIN_S)
            # A folder of its own: the processes of a server are found by their folder.
            (folder / "front_doors").mkdir()
            addresses = [self.address(number) for number in range(NUM_SERVERS)]
            self.doors = Doors(folder / "front_doors", addresses)
            started.callback(self.doors.close)
            reserve([*self.doors.ports, *(port for each in self.ports for port in astuple(each))])
            self._started = started.pop_all()

    def __enter__(self) -> Fleet:
        """Return the fleet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self._started.close()

    def address(self, number: int) -> str:
        """Return where the gRPC server of a server listens."""
        return f"127.0.0.1:{self.ports[number].grpc}"

    def sessions_of(self, number: int, count: int) -> list[str]:
        """Return sessions that are answered by a server while all are ready."""
        servers = [FleetServer(self.address(each), None, is_ready=True) for each in range(NUM_SERVERS)]  # type: ignore[arg-type]
        length = UpstreamSetting("fleet").prefix_tokens
        names = (f"session {index}" for index in range(1000))
        chosen = (
            name
            for name in names
            if placed(servers, CompletionRequest(session_id=name), length)[0].address == self.address(number)
        )
        return [next(chosen) for _ in range(count)]

    def processes(self, number: int) -> list[int]:
        """Return all processes of a server."""
        return [process.pid for process, _ in processes_with(str(self.directories[number]))]

    def start_other(self, number: int) -> None:
        """Start a server with another target at the ports of one that was killed, and wait for it."""
        self.servers[number].stop(kill_after_s=0)
        self.servers[number] = self._start(number, self._other)
        self.servers[number].wait_ready(_RETURNS_WITHIN_S)

    def restore(self, number: int) -> None:
        """Start a server again if it has ended, and wait until all front doors use it."""
        if not self.servers[number].process.is_alive or not self.servers[number].is_ready():
            self.servers[number].stop(kill_after_s=0)
            self.servers[number] = self._start(number)
            self.servers[number].wait_ready(_RETURNS_WITHIN_S)
        address = self.address(number)
        has_returned = wait_until(lambda: self.doors.latest_words(address) == {"ready"}, _RETURNS_WITHIN_S)
        assert has_returned, f"{address} has not returned to all front doors"

    def _stop_servers(self) -> None:
        for server in self.servers:
            server.stop(kill_after_s=0)

    def _start(self, number: int, directory: Path | None = None) -> Server:
        """Start a server, as soon as what was killed has left its ports."""
        deadline_s = time.monotonic() + _RETURNS_WITHIN_S
        while True:
            try:
                return Server.start(directory or self.directories[number], self.ports[number])
            except PortInUseError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
