"""Tests of a fleet whose servers are found in DNS: they appear, vanish, and take over from each other."""

from __future__ import annotations

import asyncio
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import RepositoryError, ServerStartError
from pipelines.front_door.answering import generate_all
from pipelines.upstreams.__main__ import main
from pipelines.upstreams.fleet.addresses import Addresses
from pipelines.upstreams.fleet.door import _describe
from pipelines.upstreams.fleet.fleet import Fleet
from tests.support.front_door_alone import started_front_door
from tests.unit.upstreams.fleet_world import OWN, StandInServer, fleet_of
from tests.unit.upstreams.test_fleet import ALONE, all_of, check, rest_of

NAME = "servers.example"


class Dns:
    """Answers look-ups of ``NAME``; None for no answer."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: tuple[str, ...] | None = hosts

    def getaddrinfo(self, host: str, port: int, *others: Any, **more: Any) -> list[Any]:
        assert host == NAME
        if self.hosts is None:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in self.hosts]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Dns:
    answers = Dns()
    monkeypatch.setattr(socket, "getaddrinfo", answers.getaddrinfo)
    return answers


def neighbours(count: int) -> tuple[list[StandInServer], int]:
    """Return servers with the same port on different loopback addresses, as pods have."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    servers = [StandInServer() for _ in range(count)]
    for number, server in enumerate(servers):
        server.address = f"127.0.0.{number + 2}:{port}"
    return servers, port


async def until_known(fleet: Fleet, *servers: StandInServer) -> None:
    wanted = {server.address for server in servers}
    while {address for address, server in fleet.servers.items() if server.is_ready} != wanted:
        await asyncio.sleep(0.01)


async def test_addresses_are_those_of_the_settings_and_of_the_name(dns: Dns) -> None:
    found = Addresses(["10.0.0.9:8001", "10.0.0.2:8001"], f"{NAME}:8001")
    dns.hosts = ("10.0.0.2", "10.0.0.1", "10.0.0.1")
    expected = ("10.0.0.9:8001", "10.0.0.2:8001", "10.0.0.1:8001")
    assert await found.now() == expected
    dns.hosts = None
    assert await found.now() == expected, "what DNS said last stays"
    dns.hosts = ("fd00::1",)
    assert (await found.now())[-1] == "[fd00::1]:8001"
    assert found.may_change and not Addresses(["a:1"], "").may_change


async def test_servers_come_and_go_with_their_addresses(dns: Dns) -> None:
    servers, port = neighbours(3)
    first, second, third = servers
    dns.hosts = ("127.0.0.2", "127.0.0.3")
    async with fleet_of(servers, name=f"{NAME}:{port}") as fleet:
        await until_known(fleet, first, second)
        dns.hosts = ("127.0.0.3", "127.0.0.4")
        await until_known(fleet, second, third)
        for server in servers:
            server.asked.clear()
        await generate_all(fleet, [replace(ALONE, seed=number) for number in range(8)])
        assert [len(server.asked) for server in servers] == [0, 4, 4]
        assert fleet.max_requests == 16
        dns.hosts = None
        await asyncio.sleep(0.1)
        check(await all_of(fleet, ALONE), ALONE)


async def test_servers_are_searched_for_after_a_search_that_failed(
    dns: Dns, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    servers, port = neighbours(2)
    dns.hosts = ("127.0.0.2",)

    def fail(*others: Any, **more: Any) -> list[Any]:
        raise UnicodeError("label empty or too long")

    async with fleet_of(servers, name=f"{NAME}:{port}") as fleet:
        await until_known(fleet, servers[0])
        with monkeypatch.context() as broken:
            broken.setattr(socket, "getaddrinfo", fail)
            while "cannot be searched for" not in caplog.text:
                await asyncio.sleep(0.01)
        dns.hosts = ("127.0.0.2", "127.0.0.3")
        await until_known(fleet, *servers)


async def test_a_server_that_vanishes_finishes_its_answers(dns: Dns) -> None:
    servers, port = neighbours(2)
    dns.hosts = ("127.0.0.2",)
    async with fleet_of(servers, name=f"{NAME}:{port}") as fleet:
        await until_known(fleet, servers[0])
        answer = fleet.stream(ALONE)
        chunks = [await anext(answer)]
        dns.hosts = ("127.0.0.3",)
        await until_known(fleet, servers[1])
        check([*chunks, *await rest_of(answer)], ALONE)
        assert servers[1].asked == [] and fleet.num_resumed == 0


FILES = ServedFiles("demo", "0" * 64, 512, 24, 1_700_000_000, 32, '{"a": "\u00fc\\n"}', None, {})


def test_until_a_server_answers_clients_are_told_to_come_again(tmp_path: Path) -> None:
    with started_front_door(tmp_path, ["127.0.0.1:9"]) as door:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/health")):
            reply = httpx.request(method, f"{door.url}{path}", timeout=120, trust_env=False)
            assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
            assert "No server of the fleet has answered yet." in reply.json()["error"]["message"]
        door.process.send_signal(signal.SIGTERM)
        assert door.process.wait(120) == 0


def test_keys_that_cannot_be_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, front_door = tmp_path / "fleet.yaml", tmp_path / "front_door.yaml"
    settings.write_text("name: tests-fleet\nstable: {name: fleet, servers: ['127.0.0.1:9']}\n")
    front_door.write_text("keys: front_door.yaml")
    assert main(["--settings", str(settings), "--front-door", str(front_door), "--port", "0"]) == 1
    assert "front_door.yaml" in capsys.readouterr().err


class StandInCalls:
    """A connection to the server ``other``, of another version, or to one of this version."""

    def __init__(self, address: str, *others: object) -> None:
        self._address = address

    async def extensions(self) -> tuple[str, ...]:
        return ("draftproof {}" if self._address == "other" else OWN.extension,)

    async def served_files(self) -> bytes:
        return FILES.to_wire()

    async def close(self) -> None:
        pass


def test_a_server_whose_description_cannot_be_read_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.upstreams.fleet.door.GatewayCalls", StandInCalls)
    found = asyncio.run(_describe(Addresses(["other", "own"], ""), asyncio.Event()))
    assert found == (FILES, OWN)
    with pytest.raises(RepositoryError):
        asyncio.run(_describe(Addresses(["other"], ""), asyncio.Event()))


def test_a_description_arrives_as_it_was_sent() -> None:
    assert ServedFiles.of_wire(FILES.to_wire(), "a:8001") == FILES
    with pytest.raises(ServerStartError, match="a:8001") as refused:
        ServedFiles.of_wire(FILES.to_wire().replace(b'"format": 2', b'"format": 1'), "a:8001")
    assert "same version" in refused.value.remedy
    with pytest.raises(
        ServerStartError, match="tokenizer=None has the wrong type: it must be a valid string"
    ):
        ServedFiles.of_wire(replace(FILES, tokenizer=None).to_wire(), "a:8001")  # type: ignore[arg-type]
