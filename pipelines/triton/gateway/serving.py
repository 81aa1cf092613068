"""Serves one Triton's models to clients, over HTTP and gRPC, with metrics on a port of their own.

OpenAI's API is served by a process of its own, which sends its requests to the gRPC port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from functools import partial
from pathlib import Path

from aiohttp import web
from grpc._cython import cygrpc  # type: ignore[import-untyped]

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.ports import Endpoint
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError
from pipelines.triton.gateway import metrics
from pipelines.triton.gateway.grpc_server import GrpcServer
from pipelines.triton.gateway.http_server import HttpServer
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.relay import Relay
from pipelines.triton.gateway.triton import Triton
from pipelines.triton.supervision.front_door_process import FrontDoorProcess
from pipelines.triton.supervision.supervisor import Supervisor
from pipelines.triton.supervision.triton_process import TritonProcess
from pipelines.web_application import BACKLOG, SHUTDOWN_S, log_no_faults_of_clients, served


async def serve(
    directory: Path,
    endpoint: Endpoint,
    place: TritonPlace,
    process: TritonProcess,
    stopping: asyncio.Event,
    reloading: asyncio.Event,
) -> None:
    """Serve until ``stopping`` is set.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        endpoint: Addresses for clients.
        place: Sockets and files of Triton.
        process: The Triton that was just started.
        stopping: Ends the server.
        reloading: Makes it load the models of its repository again.

    Raises:
        ServerStartError: A port cannot be listened on, or Triton cannot be started.
    """
    log_no_faults_of_clients()
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_of_the_server)
    calls = OpenCalls()
    async with contextlib.aclosing(Triton(place)) as triton, contextlib.AsyncExitStack() as fronts:
        repository, start = (
            directory / "model_repository",
            partial(TritonProcess.start, directory, place, endpoint),
        )
        supervisor = Supervisor(
            repository, endpoint.drain_s, triton, calls, process, start, stopping, reloading
        )
        relay = Relay(triton, supervisor, calls, repository)
        ports, host = endpoint.ports, endpoint.address
        hosts = FrontDoorSettings.read(endpoint.front_door).hosts
        try:
            await listen(fronts, HttpServer(relay).application(hosts), host, ports.http)
            bracketed = f"[{host}]" if ":" in host else host
            grpc_server = await GrpcServer(relay, directory).start(f"{bracketed}:{ports.grpc}")
            fronts.push_async_callback(grpc_server.stop, SHUTDOWN_S)
            front_door = None
            if ports.openai:
                front_door = FrontDoorProcess(directory, endpoint, place, stopping)
                fronts.push_async_callback(front_door.close)
            await listen(fronts, metrics.application(relay, front_door, hosts), host, ports.metrics)
        except (OSError, RuntimeError) as error:
            raise ServerStartError(
                f"a port cannot be listened on: {host}, {ports}: {error}",
                "choose other ports with HTTP_PORT, GRPC_PORT, METRICS_PORT and OPENAI_PORT",
            ) from None
        await supervisor.run(front_door)


async def listen(
    fronts: contextlib.AsyncExitStack, application: web.Application, host: str, port: int
) -> None:
    """Serve an application at an address until the stack closes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    await fronts.enter_async_context(served(application, listening))


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """Filter out errors of gRPC that clients cause by leaving."""
    return not (record.exc_info and isinstance(record.exc_info[1], cygrpc.ExecuteBatchError))
