"""Tests of clients that stop reading: they are disconnected, and their requests are cancelled."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings, Tls
from pipelines.front_door.delivery import EventStream, deliver
from pipelines.front_door.serving import listen
from tests.support.certificate import make_certificate

LARGE = b"x" * (2 << 20)  # more than the operating system keeps for a connection
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def document(request: web.Request) -> web.StreamResponse:
    return web.Response(body=LARGE)


async def stream(request: web.Request) -> web.StreamResponse:
    events = EventStream(request)
    for _ in range(40):
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


SIZES: dict[Handler, int] = {document: len(LARGE), stream: 40 * 65536, short_stream: 60_000}


def connect(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    if tls is not None:
        client = tls.wrap_socket(client, server_hostname="127.0.0.1")
    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    return client


@pytest.fixture(params=["http", "https"])
def certificate(request: Any, tmp_path: Path) -> Tls | None:
    return make_certificate(tmp_path) if request.param == "https" else None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("handler", SIZES)
@pytest.mark.parametrize("reads", [False, True], ids=["never reads", "pauses"])
def test_a_client_that_never_reads_is_disconnected_and_one_that_pauses_gets_everything(
    reads: bool, handler: Handler, run: Callable[[Any], None], certificate: Tls | None
) -> None:
    settings = FrontDoorSettings(write_timeout_s=60 if reads else 0.2, tls=certificate)
    of_client = ssl.create_default_context(cafile=certificate.certificate) if certificate else None

    async def work() -> None:
        outcome: asyncio.Queue[str] = asyncio.Queue()

        async def answer(request: web.Request) -> web.StreamResponse:
            ending = "disconnected"
            try:
                response = await handler(request)
                await deliver(request, response)
                if request.transport is not None:
                    ending = "delivered"
                return response
            finally:
                outcome.put_nowait(ending)

        application = web.Application()
        application.router.add_get("/", answer)
        listening = settings.listen(0)
        port = listening.getsockname()[1]
        async with listen(application, settings, listening):
            with await asyncio.to_thread(connect, port, of_client) as client:
                if reads:
                    await asyncio.sleep(0.3)
                    assert outcome.empty()
                    assert await asyncio.to_thread(num_bytes, client) > SIZES[handler]
                found = await asyncio.wait_for(outcome.get(), 60)
        assert found == ("delivered" if reads else "disconnected")

    run(work())


def num_bytes(client: socket.socket) -> int:
    number = 0
    while data := client.recv(1 << 20):
        number += len(data)
    return number
