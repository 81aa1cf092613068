"""Three servers of the tests' pair and their front doors, which are started again after each fault."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import TracebackType

from build.repository import render_recipe
from pipelines.client.request import CompletionRequest
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import Ports
from pipelines.deploy.process import processes_with
from pipelines.deploy.server import Server
from pipelines.front_door.fleet.placement import Placement
from pipelines.front_door.fleet.server import FleetServer
from tests.fleet_drills.doors import NUM_DOORS, Doors
from tests.integration.conftest import tiny_recipe
from tests.support.tiny_engines import build_tiny_pair

NUM_SERVERS = 3
HANGS_FOR_S = 8.0
_RETURNS_WITHIN_S = 300.0


class Place:
    """The servers, the front doors and HAProxy.

    Attributes:
        doors: The front doors.
        target: Directory of the target's engine.

    Args:
        folder: For everything that is written.
    """

    def __init__(self, folder: Path) -> None:
        draft, self.target = build_tiny_pair(folder / "engines", draft="noisy")
        self._directories = [
            render_recipe(tiny_recipe("tiny"), draft, self.target, folder / f"server{number}").parent
            for number in range(NUM_SERVERS)
        ]
        self._ports = [Ports.free() for _ in self._directories]
        self._servers = [self._start(number) for number in range(NUM_SERVERS)]
        for server in self._servers:
            server.wait_ready(_RETURNS_WITHIN_S)
        # A folder of its own: the processes of a server are found by their folder.
        (folder / "front_doors").mkdir()
        addresses = [self.address(number) for number in range(NUM_SERVERS)]
        self.doors = Doors(folder / "front_doors", addresses)

    def __enter__(self) -> Place:
        """Return the place."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.doors.close()
        for server in self._servers:
            server.stop(kill_after_s=0)

    def address(self, number: int) -> str:
        """Return where the gRPC server of a server listens."""
        return f"127.0.0.1:{self._ports[number].grpc}"

    def sessions_of(self, number: int, count: int) -> list[str]:
        """Return sessions that are answered by a server while all are ready."""
        servers = [FleetServer(self.address(each), None, is_ready=True) for each in range(NUM_SERVERS)]  # type: ignore[arg-type]
        placement = Placement(FrontDoorSettings().prefix_tokens)
        names = (f"session {index}" for index in range(1000))
        chosen = (
            name
            for name in names
            if placement.order(servers, CompletionRequest(session_id=name))[0].address == self.address(number)
        )
        return [next(chosen) for _ in range(count)]

    def kill(self, number: int) -> None:
        """Kill a server without a warning."""
        os.kill(self._servers[number].process.pid, signal.SIGKILL)
        self._restore(number)

    def hang(self, number: int) -> None:
        """Stop all processes of a server, and let them go on after ``HANGS_FOR_S``."""
        processes = [process.pid for process, _ in processes_with(str(self._directories[number]))]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(HANGS_FOR_S)
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        self._restore(number)

    def drain(self, number: int) -> None:
        """Tell a server to end, wait until it has, and start it again."""
        process = self._servers[number].process
        os.kill(process.pid, signal.SIGTERM)
        while process.is_alive:
            time.sleep(0.05)
        self._restore(number)

    def drain_all(self, number: int) -> None:
        """Drain all servers, one after the other, beginning with one of them."""
        for each in range(NUM_SERVERS):
            self.drain((number + each) % NUM_SERVERS)

    def kill_front_door(self, number: int) -> None:
        """Kill a front door without a warning."""
        self.doors.kill(number % NUM_DOORS)
        self.doors.restore(number % NUM_DOORS)

    def _restore(self, number: int) -> None:
        """Start a server again if it has ended, and wait until all front doors use it."""
        if not self._servers[number].process.is_alive or not self._servers[number].is_ready():
            self._servers[number].stop(kill_after_s=0)
            self._servers[number] = self._start(number)
            self._servers[number].wait_ready(_RETURNS_WITHIN_S)
        deadline_s = time.monotonic() + _RETURNS_WITHIN_S
        while self.doors.latest_words(self.address(number)) != {"ready"}:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{self.address(number)} has not returned to all front doors")
            time.sleep(0.05)

    def _start(self, number: int) -> Server:
        return Server.start(self._directories[number], self._ports[number])
