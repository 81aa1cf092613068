"""Tests of clients that stop reading: they are disconnected, and their requests are cancelled."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from pipelines.front_door.delivery import WRITE_TIMEOUT, EventStream, deliver, dropped_after, num_unsent
from tests.support.virtual_time import run_virtually

LARGE = b"x" * (8 << 20)  # more than the operating system keeps for a connection
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """An application with one path, as the front door guards its own.

    Attributes:
        outcome: How the request ended: "cancelled", "delivered", or the error.
        num_buffered: Bytes that the server kept for the client at the end.
    """

    def __init__(self, handler: Handler) -> None:
        self.outcome: asyncio.Queue[str] = asyncio.Queue()
        self.num_buffered = -1
        self._handler = handler

    async def serve(self, timeout_s: float, tls: ssl.SSLContext | None = None) -> tuple[web.AppRunner, int]:
        application = web.Application(middlewares=[self._guard])
        application[WRITE_TIMEOUT] = timeout_s
        application.router.add_get("/", self._handler)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return runner, runner.addresses[0][1]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport: Any = request.transport
        try:
            response = await handler(request)
            await deliver(request, response)
            self.outcome.put_nowait("delivered")
            return response
        except asyncio.CancelledError:
            self.outcome.put_nowait("cancelled")
            raise
        except Exception as error:
            self.outcome.put_nowait(repr(error))
            raise
        finally:
            self.num_buffered = num_unsent(transport)


async def document(request: web.Request) -> web.StreamResponse:
    return web.Response(body=LARGE)


async def stream(request: web.Request) -> web.StreamResponse:
    events = EventStream(request)
    for _ in range(200):
        await events.send({"text": "y" * 65536})
    await events.done()
    return events.response


async def short_stream(request: web.Request) -> web.StreamResponse:
    """A stream that ends before aiohttp waits for the client for the first time."""
    request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]
    events = EventStream(request)
    await events.send({"text": "z" * 60_000})
    await events.done()
    return events.response


def connect(port: int, tls: ssl.SSLContext | None = None) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(True)
    client.connect(("127.0.0.1", port))
    if tls is not None:
        client = tls.wrap_socket(client)
    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    return client


@pytest.mark.parametrize("handler", [document, stream, short_stream])
def test_a_client_that_never_reads_is_disconnected(handler: Handler) -> None:
    async def run() -> None:
        door = Door(handler)
        runner, port = await door.serve(timeout_s=0.2)
        with connect(port):
            outcome = await asyncio.wait_for(door.outcome.get(), 60)
            assert outcome == "cancelled" or "Connection" in outcome, outcome
            assert door.num_buffered == 0
        await runner.cleanup()

    asyncio.run(run())


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a file with a certificate and its key."""
    program, path = shutil.which("openssl"), tmp_path / "tls.pem"
    if program is None:
        pytest.skip("no openssl to make a certificate with")
    made = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", path, "-out", tmp_path / "tls.crt"], check=True, capture_output=True)
    path.write_text(path.read_text() + (tmp_path / "tls.crt").read_text())
    return path


@pytest.mark.parametrize("handler", [document, stream, short_stream])
def test_a_client_that_never_reads_over_tls_is_disconnected(handler: Handler, certificate: Path) -> None:
    of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    of_server.load_cert_chain(certificate)
    of_client = ssl.create_default_context(cafile=certificate)
    of_client.check_hostname = False

    async def run() -> None:
        door = Door(handler)
        runner, port = await door.serve(timeout_s=0.2, tls=of_server)
        with await asyncio.to_thread(connect, port, of_client):
            outcome = await asyncio.wait_for(door.outcome.get(), 60)
            assert outcome == "cancelled" or "Connection" in outcome, outcome
            assert door.num_buffered == 0
        await runner.cleanup()

    asyncio.run(run())


class SlowClient:
    """A connection whose client takes 100 bytes every 3 s until it stops.

    Attributes:
        aborted_s: When it was disconnected, by the loop's clock.
    """

    def __init__(self, num_bytes: int, num_taken: int) -> None:
        self.aborted_s = 0.0
        self._sizes = range(num_bytes, num_bytes - num_taken, -100)

    def get_write_buffer_size(self) -> int:
        number = int(asyncio.get_running_loop().time() / 3)
        return self._sizes[min(number, len(self._sizes) - 1)]

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *option: None)

    def abort(self) -> None:
        self.aborted_s = asyncio.get_running_loop().time()


def test_a_client_that_reads_slowly_is_disconnected_only_when_it_stops() -> None:
    client = SlowClient(100_000, num_taken=10_000)
    request: Any = SimpleNamespace(app={WRITE_TIMEOUT: 10.0}, transport=client)

    async def send() -> None:
        with pytest.raises(ConnectionResetError), dropped_after(request):
            await asyncio.sleep(1000)

    run_virtually(send())
    stopped_s = 99 * 3
    assert stopped_s + 10 <= client.aborted_s <= stopped_s + 15


@pytest.mark.parametrize("handler", [document, stream, short_stream])
def test_a_client_that_pauses_gets_everything(handler: Handler) -> None:
    async def run() -> None:
        door = Door(handler)
        runner, port = await door.serve(timeout_s=60)
        loop = asyncio.get_running_loop()
        with connect(port) as client:
            await asyncio.sleep(0.3)
            client.setblocking(False)
            num_bytes = 0
            while data := await asyncio.wait_for(loop.sock_recv(client, 1 << 20), 60):
                num_bytes += len(data)
            assert await door.outcome.get() == "delivered"
            assert num_bytes > {document: len(LARGE), stream: 200 * 65536, short_stream: 60_000}[handler]
        await runner.cleanup()

    asyncio.run(run())
