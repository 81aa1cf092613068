"""Tests of a fleet's door without a server; ``make drills-fleet`` has servers."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import RepositoryError, ServerStartError
from pipelines.upstreams.__main__ import main
from pipelines.upstreams.fleet.addresses import Addresses
from pipelines.upstreams.fleet.door import _describe
from tests.support.front_door_alone import started_front_door
from tests.unit.upstreams.fleet_world import OWN

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
