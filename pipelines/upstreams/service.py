"""One process in front of servers: a fleet alone is answered for, others are passed requests on.

A fleet alone has the whole front door. In a rollout each fleet has such a door on loopback, where it is asked
as any server is.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import uvloop

from pipelines.canary.run_files import observations_file
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import DRAIN_S, HOST
from pipelines.deploy.triton.place import new_key
from pipelines.front_door.guarding import HEALTH
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.serving import listen
from pipelines.router.observation_log import ObservationLog
from pipelines.router.routing import Routing
from pipelines.upstreams.application import Application
from pipelines.upstreams.fleet.door import serve_fleet
from pipelines.upstreams.metrics import RolloutPhase
from pipelines.upstreams.reading import Piece
from pipelines.upstreams.rollout import CandidateRollout
from pipelines.upstreams.settings import UpstreamsSettings, endpoint_of
from pipelines.upstreams.upstream import Upstream
from pipelines.validation.openai.server.endpoint import Endpoint

_ASK_INTERVAL_S = 0.5


class Service:
    """A service of one or two servers or fleets, and the rollout of the second.

    Args:
        settings: The servers.
        path: File of the settings.
        run_directory: Folder of the service's state.
        front_door: Who may ask, and limits.
        again: Whether a candidate is rolled out whose last rollout has ended.

    Raises:
        CanaryError: The plan, the limits or what an earlier rollout left cannot be used.
        InvalidRequestError: An address or a key is invalid.
    """

    def __init__(
        self,
        settings: UpstreamsSettings,
        path: Path,
        run_directory: Path,
        front_door: FrontDoorSettings,
        *,
        again: bool,
    ) -> None:
        self._settings = settings
        self._run = run_directory
        self._front_door = front_door
        self._endpoints = {each.name: endpoint_of(each, path) for each in settings.upstreams if each.url}
        self._rollout = CandidateRollout(settings, path, run_directory, self._endpoints, again=again)

    def run(self, port: int) -> int:
        """Serve until the process is told to stop.

        Args:
            port: Port to listen on; 0 for any that is free.

        Returns:
            The exit code.

        Raises:
            DraftproofError: The port cannot be listened on, keys or certificate cannot be read, or the
                servers of a fleet serve different pairs.
        """
        uvloop.run(self._serve(port))
        return self._rollout.exit_code

    async def _serve(self, port: int) -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        stable = self._settings.stable
        with self._front_door.listen(port) as listening:
            if stable.is_fleet and self._settings.candidate is None:
                self._say_where(listening)
                await serve_fleet(stable, self._front_door, listening, stopping)
                return
            async with self._doors(stopping):
                await self._pass_on(listening.dup(), stopping)

    @contextlib.asynccontextmanager
    async def _doors(self, stopping: asyncio.Event) -> AsyncIterator[None]:
        """Serve each fleet on a port of its own during the block; one that fails sets ``stopping``."""
        settings = replace(
            self._front_door, address=HOST, keys="", tls=None, hosts=(), cors_origins=(), request_log=""
        )
        has_ended = asyncio.Event()
        doors: list[asyncio.Task[None]] = []
        with contextlib.ExitStack() as sockets:
            for each in self._settings.upstreams:
                if each.is_fleet:
                    listening = sockets.enter_context(settings.listen(0))
                    self._endpoints[each.name] = Endpoint(
                        settings.url(listening.getsockname()[1]), each.model
                    )
                    doors.append(asyncio.create_task(serve_fleet(each, settings, listening, has_ended)))
                    doors[-1].add_done_callback(lambda _: stopping.set())
            try:
                yield
            finally:
                has_ended.set()
                await asyncio.gather(*doors)

    async def _pass_on(self, listening: socket.socket, stopping: asyncio.Event) -> None:
        async with contextlib.AsyncExitStack() as stack:
            upstreams = {
                name: Upstream(name, endpoint, self._settings.timeout_s)
                for name, endpoint in self._endpoints.items()
            }
            for upstream in upstreams.values():
                stack.push_async_callback(upstream.close)
            log = ObservationLog(observations_file(self._run))
            stack.callback(log.close)
            routing: Routing[Piece] = Routing(self._rollout.arms, log)
            metrics = MetricsPage()
            metrics.publish(routing.metrics)
            metrics.publish(RolloutPhase(self._rollout.phase))
            stack.push_async_callback(routing.close)
            application = Application(routing, upstreams, self._front_door, metrics, new_key(self._run))
            await stack.enter_async_context(listen(application.application(), self._front_door, listening))
            self._say_where(listening)
            for each in self._settings.upstreams:
                if each.is_fleet:  # a rollout would refuse one that has no server yet
                    print(f"{each.name} is asked at {self._endpoints[each.name].url}", flush=True)
                    await _wait_healthy(upstreams[each.name], stopping)
            if not stopping.is_set():
                self._rollout.start()
            await stopping.wait()
            await asyncio.gather(
                application.in_progress.drain(DRAIN_S), asyncio.to_thread(self._rollout.stop)
            )

    def _say_where(self, listening: socket.socket) -> None:
        print(f"listening on {self._front_door.url(listening.getsockname()[1])}", flush=True)


async def _wait_healthy(upstream: Upstream, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
            async with upstream.send("GET", HEALTH) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(_ASK_INTERVAL_S)
