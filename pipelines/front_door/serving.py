"""Serves a front door on a socket until it is told to stop; its certificate may be renewed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from pipelines.atomic_file import version_of
from pipelines.deploy.front_door import FrontDoorSettings, Tls
from pipelines.errors import ServerStartError
from pipelines.front_door.answering import RouterCalls
from pipelines.front_door.application import FrontDoor
from pipelines.front_door.observing.exchange import RequestLog
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.served_model import ServedModel
from pipelines.web_application import SHUTDOWN_S, log_no_faults_of_clients, served

_LOG = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 10.0


class TlsContext:
    """TLS 1.2 or newer with the certificate of a file.

    Attributes:
        context: For the listening socket; new connections get the latest certificate.

    Args:
        files: Files of the certificate.

    Raises:
        ServerStartError: They are missing, are no certificate and key, or do not fit together.
    """

    def __init__(self, files: Tls) -> None:
        self._files = files
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._versions()
        try:
            self.context.load_cert_chain(files.certificate, files.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise ServerStartError(
                f"{files.certificate} and {files.key} are no certificate and private key: {error}",
                "name PEM files without a password in the settings of the front door",
            ) from None

    async def watch(self) -> None:
        """Read the files again whenever they change."""
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            if (seen := self._versions()) == self._seen:
                continue
            try:
                # A key that does not fit would leave the context without either.
                TlsContext(self._files)
                self.context.load_cert_chain(self._files.certificate, self._files.key, password="")
                self._seen = seen
            except (OSError, ssl.SSLError, ServerStartError) as error:
                _LOG.error("the earlier certificate stays in use: %s", error)

    def _versions(self) -> tuple[object, ...]:
        return tuple(version_of(Path(name)) for name in (self._files.certificate, self._files.key))


def log_to_standard_output() -> None:
    """Write warnings and errors, but none that clients cause."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout
    )
    log_no_faults_of_clients()


async def serve(
    model: ServedModel,
    router: RouterCalls,
    metrics: MetricsPage,
    settings: FrontDoorSettings,
    listening: socket.socket,
    stopping: asyncio.Event,
    drain_s: float,
    server_key: str = "",
    *,
    checks_model: bool = False,
) -> None:
    """Serve until ``stopping`` is set, and close the router and all others.

    Args:
        model: The model.
        router: Who answers.
        metrics: Publishes metrics.
        settings: Who may use it, and its limits.
        listening: The listening socket.
        stopping: Ends the front door.
        drain_s: How long to wait for running requests then.
        server_key: The server's key, with which operators choose an arm; "" for none.
        checks_model: Whether requests must name the model as it is served.

    Raises:
        ServerStartError: The API keys or the certificate cannot be read.
    """
    log = RequestLog(settings, model) if settings.request_log else None
    observers = [metrics.observe, *([log.observe] if log else [])]
    door = FrontDoor(model, router, settings, metrics, observers, server_key, checks_model=checks_model)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(router.close)
        stack.push_async_callback(metrics.close)
        if log is not None:
            stack.callback(log.close)
        if model.chat is not None:
            stack.callback(model.chat.close)
        await stack.enter_async_context(listen(door.application(), settings, listening))
        await stopping.wait()
        await door.in_progress.drain(drain_s + SHUTDOWN_S)


@contextlib.asynccontextmanager
async def listen(
    application: web.Application, settings: FrontDoorSettings, listening: socket.socket
) -> AsyncIterator[None]:
    """Serve an application during a block; the socket is closed at its end.

    Args:
        application: The application.
        settings: Limits and certificate of the front door.
        listening: The listening socket.

    Raises:
        ServerStartError: The certificate cannot be read.
    """
    tls = TlsContext(settings.tls) if settings.tls else None
    context, watching = (tls.context, asyncio.create_task(tls.watch())) if tls else (None, None)
    try:
        async with served(application, listening, tls=context, idle_s=settings.header_timeout_s):
            yield
    finally:
        if watching is not None:
            watching.cancel()
