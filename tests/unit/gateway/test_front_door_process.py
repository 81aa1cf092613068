"""Tests of the front door's process: it is started again whatever ends it, and told to drain at the end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.ports import HOST, Endpoint, Ports
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError
from pipelines.triton.supervision import front_door_process
from pipelines.triton.supervision.front_door_process import FrontDoorProcess

# Answers every connection; "hang" makes it stop answering, and "end" makes it end. It ends with these tests.
STAND_IN = """
import os, socket, sys, threading, time
def end_with_the_tests():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=end_with_the_tests, daemon=True).start()
listening = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
while True:
    client, _ = listening.accept()
    asked = client.recv(4096)
    if b"end" in asked:
        os._exit(3)
    if b"hang" in asked:
        time.sleep(600)
    client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    client.close()
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Start the stand-in, probe it often, and return the command of each start."""
    monkeypatch.setattr(front_door_process, "_PROBE_INTERVAL_S", 0.02)
    monkeypatch.setattr(front_door_process, "_HANGS_AFTER_S", 60.0)
    monkeypatch.setattr(front_door_process, "_LOOK_INTERVAL_S", 0.01)
    started: list[list[str]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        started.append(command)
        return popen([sys.executable, "-c", STAND_IN, *command[3:]], **options)

    monkeypatch.setattr(front_door_process.subprocess, "Popen", start)
    return started


@asynccontextmanager
async def supervised(**options: Any) -> AsyncIterator[tuple[FrontDoorProcess, Endpoint]]:
    endpoint = Endpoint(Ports.free(with_openai=True), **options)
    place = TritonPlace(Path("sockets"), "", "no_such_region_")
    process = FrontDoorProcess(Path("run"), endpoint, place, asyncio.Event())
    try:
        yield process, endpoint
    finally:
        await process.close()


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.01)


async def send(endpoint: Endpoint, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, endpoint.ports.openai)
    writer.write(text)
    found = await reader.read()
    writer.close()
    return found


async def test_a_process_that_ends_is_replaced_and_connections_wait(quick: list[list[str]]) -> None:
    async with supervised() as (process, endpoint):
        await until(lambda: process.answers)
        with pytest.raises(ConnectionError):
            assert await send(endpoint, b"end") == b""
            raise ConnectionError
        assert b"200 OK" in await send(endpoint, b"GET / HTTP/1.1\r\n\r\n")
        assert process.num_restarts == 1
        await until(lambda: process.answers)


async def test_a_process_that_hangs_is_replaced(
    quick: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_door_process, "_HANGS_AFTER_S", 0.5)
    async with supervised() as (process, endpoint):
        await until(lambda: process.answers)
        hanging = asyncio.create_task(send(endpoint, b"hang"))
        await until(lambda: not process.answers)
        # A busy machine may have others replaced too.
        await until(lambda: process.num_restarts >= 1 and process.answers)
        hanging.cancel()


async def test_a_start_that_fails_is_tried_again(
    quick: list[list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, num_failures = front_door_process.subprocess.Popen, iter([True, True, False])

    def sometimes(*arguments: Any, **options: Any) -> Any:
        if next(num_failures, False):
            raise BlockingIOError("Resource temporarily unavailable")
        return start(*arguments, **options)

    monkeypatch.setattr(front_door_process.subprocess, "Popen", sometimes)
    async with supervised() as (process, _):
        await until(lambda: process.answers)
        assert process.num_restarts == 2
        assert caplog.text.count("cannot be started: Resource temporarily unavailable") == 2


async def test_at_the_end_it_is_told_to_drain_and_not_replaced(quick: list[list[str]]) -> None:
    async with supervised(drain_s=7) as (process, _):
        await until(lambda: process.answers)
        process._stopping.set()
        await process._task
        assert len(quick) == 1 and process.num_restarts == 0
        assert quick[0][-2:] == ["--drain-s", "7"]


async def test_it_listens_where_its_settings_say(quick: list[list[str]], tmp_path: Path) -> None:
    settings = tmp_path / "front_door.yaml"
    settings.write_text("address: 127.0.0.2\nkeys: keys.json\n")
    async with supervised(address="0.0.0.0", front_door=settings) as (process, endpoint):
        await until(lambda: process.answers)
        with socket.create_connection(("127.0.0.2", endpoint.ports.openai), 60):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, endpoint.ports.openai), 60)
        assert quick[0][-2:] == ["--settings", str(settings)]


async def test_wrong_settings_end_the_server(tmp_path: Path) -> None:
    settings = tmp_path / "front_door.yaml"
    settings.write_text("address: 0.0.0.0\n")
    with pytest.raises(ServerStartError, match="everybody could use this server"):
        async with supervised(front_door=settings):
            pass
