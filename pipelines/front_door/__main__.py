"""Runs the front door of one server. The gateway starts and supervises it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pipelines.client.timeouts import Timeouts
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.identity import ServerIdentity
from pipelines.front_door.access.tls import TlsContext
from pipelines.front_door.application import FrontDoor
from pipelines.front_door.fleet.fleet import Fleet
from pipelines.front_door.observing.fleet_metrics import FleetMetrics
from pipelines.front_door.observing.metrics_page import MetricsPage
from pipelines.front_door.observing.request_log import RequestLog
from pipelines.front_door.observing.traces import Traces, are_wanted
from pipelines.front_door.router_calls import GatewayCalls, RouterCalls
from pipelines.front_door.served_model import ServedModel
from pipelines.program import EXIT_PASS, run_program

_BACKLOG = 4096  # as many as the gateway lets wait; aiohttp would lower it
_SHUTDOWN_S = 2.0  # for sending final errors


class Gateway(NamedTuple):
    """Addresses of the gateway.

    Attributes:
        grpc: ``host:port`` of its gRPC server.
        metrics: ``host:port`` of its metrics.
    """

    grpc: str
    metrics: str


def main(arguments: list[str] | None = None) -> int:
    """Run the front door; returns 0 after SIGTERM, 1 if it cannot start."""
    options = _parse(arguments)
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout
    )
    logging.getLogger("aiohttp.server").addFilter(_is_of_the_server)

    def work() -> int:
        settings = FrontDoorSettings.read(options.settings)
        directory = options.directory.resolve()
        gateway = Gateway(options.gateway, options.metrics)
        asyncio.run(serve(directory, settings, gateway, options.fd, options.drain_s))
        return EXIT_PASS

    return run_program(work)


async def serve(
    directory: Path, settings: FrontDoorSettings, gateway: Gateway, listening: int, drain_s: float
) -> None:
    """Serve until this process receives a signal to stop.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        settings: Who may use it, and its limits.
        gateway: Where the gateway serves this process.
        listening: File descriptor of the listening socket, which outlives this process.
        drain_s: How long to wait for running requests after the signal.

    Raises:
        ServerStartError: The repository, the API keys or the certificate cannot be read, or a server of the
            fleet serves another pair.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    asyncio.get_running_loop().add_reader(sys.stdin, _end_with_the_gateway)
    model = await asyncio.to_thread(ServedModel.read, directory)
    metrics = MetricsPage(model, gateway.metrics)
    router: RouterCalls
    if settings.servers:
        router = fleet = await _fleet(directory, settings, model)
        metrics.publish(FleetMetrics(fleet.servers, lambda: fleet.num_resumed))
    else:
        router = GatewayCalls(gateway.grpc, Timeouts(), model.max_requests)
    log = RequestLog(settings, model) if settings.request_log else None
    traces = Traces(model.name) if are_wanted() else None
    kept = [each for each in (log, traces) if each is not None]
    door = FrontDoor(
        model, router, settings, metrics, [metrics.requests.observe, *(each.observe for each in kept)]
    )
    tls = TlsContext(settings.tls) if settings.tls else None
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(router.close)
        stack.push_async_callback(metrics.close)
        for each in kept:
            stack.callback(each.close)
        runner = web.AppRunner(
            door.application(),
            access_log=None,
            handler_cancellation=True,  # a client that leaves cancels its request
            auto_decompress=False,  # aiohttp would decompress to any size before the request is refused
            keepalive_timeout=settings.header_timeout_s,  # counts from the beginning of a connection too
            shutdown_timeout=_SHUTDOWN_S,
        )
        if model.chat is not None:
            stack.callback(model.chat.close)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        if tls is not None:
            watching = asyncio.create_task(tls.watch())
            stack.callback(watching.cancel)
        site = web.SockSite(
            runner,
            socket.socket(fileno=listening),
            ssl_context=tls.context if tls else None,
            backlog=_BACKLOG,
        )
        await site.start()
        await stopping.wait()
        await door.drain(drain_s + _SHUTDOWN_S)


async def _fleet(directory: Path, settings: FrontDoorSettings, model: ServedModel) -> Fleet:
    own = ServerIdentity.read(directory)
    assert own is not None, "the model was read from the same file"
    fleet = Fleet(settings.servers, model, own)
    await fleet.begin()
    return fleet


def _end_with_the_gateway() -> None:
    """End if standard input has ended, because the gateway was killed: nobody can be answered any more."""
    if not os.read(sys.stdin.fileno(), 1):
        os._exit(1)


def _is_of_the_server(record: logging.LogRecord) -> bool:
    """Filter out errors caused by clients, such as invalid HTTP or disconnects, which would fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, web.RequestPayloadError, ConnectionError))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.front_door", description=__doc__)
    parser.add_argument("directory", type=Path, help="run directory with a rendered repository")
    parser.add_argument("--gateway", required=True, help="host:port of the gateway's gRPC server")
    parser.add_argument("--metrics", required=True, help="host:port of the gateway's metrics")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("--settings", type=Path, help="YAML file (default: the defaults of each setting)")
    parser.add_argument("--drain-s", type=float, default=0.0, help="for running requests, at the end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
