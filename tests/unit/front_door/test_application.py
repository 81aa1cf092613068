"""Tests of the rules for all requests: those of clients that have left or do not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aiohttp import ClientSession, web

from pipelines.client.generation import Chunk
from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.front_door.access.key_file import add_key
from pipelines.front_door.application import FrontDoor
from pipelines.front_door.observing.exchange import Exchange
from pipelines.wire.request import CompletionRequest

_WITHIN_S = 60.0
BODY = json.dumps({"prompt": [1], "max_tokens": 2}).encode()
LARGE = "x" * (16 << 20)  # more than the operating system keeps for a connection


class Model(SimpleNamespace):
    """A model that knows what the front door asks for a prompt of token ids."""

    name, fingerprint = "demo", "0"
    defaults = CompletionRequest(temperature=1.0)
    tokenizer = SimpleNamespace(vocabulary=SimpleNamespace(size=10))

    def check_length(self, num_tokens: int, name: str) -> None:
        pass

    def text_of(self, token_ids: Sequence[int]) -> str:
        return ""


class Router:
    """Answers with a large text, and keeps what it is asked."""

    max_requests = 8

    def __init__(self) -> None:
        self.asked: list[CompletionRequest] = []

    @property
    def num_asked(self) -> int:
        return len(self.asked)

    async def generate(self, request: CompletionRequest) -> Chunk:
        self.asked.append(request)
        return Chunk(LARGE, (1, 2), (False, False), "length", 0.0, 1, None)


async def unused(request: web.Request) -> web.StreamResponse:
    raise NotImplementedError


class Running:
    """A front door that is served.

    Attributes:
        door: The front door.
        port: Its port.
        router: Its router.
        ended: The exchanges that have ended.
    """

    def __init__(self, settings: FrontDoorSettings) -> None:
        self.router = Router()
        self.ended: asyncio.Queue[Exchange] = asyncio.Queue()
        metrics: Any = SimpleNamespace(answer=unused)
        model: Any = Model()
        router: Any = self.router
        self.door = FrontDoor(model, router, settings, metrics, [self.ended.put_nowait])
        self.port = 0

    async def serve(self) -> web.AppRunner:
        runner = web.AppRunner(self.door.application(), handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        return runner

    def connect(self, key: str = "") -> socket.socket:
        """Send the head of a request."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n"
        client.sendall(f"{head}Authorization: Bearer {key}\r\n\r\n".encode())
        return client


def with_door(settings: FrontDoorSettings, work: Callable[[Running], Awaitable[None]]) -> None:
    async def run() -> None:
        running = Running(settings)
        runner = await running.serve()
        try:
            await asyncio.wait_for(work(running), _WITHIN_S)
        finally:
            await runner.cleanup()

    asyncio.run(run())


def test_a_client_that_leaves_with_the_end_of_its_body_is_not_answered() -> None:
    async def work(running: Running) -> None:
        with running.connect() as client:
            client.sendall(BODY[:-1])
            while not len(running.door.in_progress):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it waits for the rest of the body
            client.sendall(BODY[-1:])
        exchange = await running.ended.get()
        assert exchange.has_left
        assert running.router.num_asked == 0

    with_door(FrontDoorSettings(), work)


def test_a_session_belongs_to_the_key_of_its_client(tmp_path: Path) -> None:
    keys = [add_key(tmp_path / "keys.json", name, None, None) for name in ("alice", "bob")]
    body = json.dumps({**json.loads(BODY), "session_id": "mine"})

    async def work(running: Running) -> None:
        url = f"http://localhost:{running.port}/v1/completions"
        async with ClientSession() as session:
            for key in (*keys, keys[0]):
                headers = {"Authorization": f"Bearer {key}"}
                async with session.post(url, data=body, headers=headers) as answered:
                    assert answered.status == 200
                    await answered.read()
        first, second, third = (each.session_id for each in running.router.asked)
        assert first == third != second
        assert "mine" not in (first, second)

    with_door(FrontDoorSettings(keys=str(tmp_path / "keys.json")), work)
