"""Tests of a front door with two real servers: one is killed, stopped or drained while it answers.

Answers are larger than a connection holds, and are read only after the fault: so they are unfinished then,
however fast the machine is.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from build.repository import render_recipe
from pipelines.deploy.server import Server
from pipelines.process import processes_with
from tests.integration.conftest import tiny_recipe, wait_until
from tests.integration.front_door.conftest import MODEL
from tests.support.front_door_alone import FrontDoorAlone, front_door_alone
from tests.support.ready_server import ready_server

# By day test_resumption.py continues answers on another server, and tests/unit/front_door/test_fleet.py has
# stand-ins that die, hang and drain.
pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("fleet"), pytest.mark.long]

_WITHIN_S = 120.0
LARGE = {
    **{"prompt": "def f(", "max_tokens": 480, "ignore_eos": True, "n": 4},
    **{"logprobs": 20, "return_token_ids": True},
}
"""Over a megabyte; a connection and the programs at its ends hold half of that."""

SCHEMA = {
    "type": "object",
    "properties": {"notes": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["notes"],
}
BODIES: dict[str, dict[str, Any]] = {
    "greedy": {**LARGE, "temperature": 0},
    "seeded": {
        **LARGE,
        "seed": 5,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.5,
        "min_tokens": 400,
    },
    "structured": {
        **LARGE,
        "seed": 7,
        "ignore_eos": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "notes", "schema": SCHEMA}},
    },
}

Answer = dict[int, tuple[str, list[int], list[float], str]]
"""Text, tokens, log probabilities and finish reason of each answer by its number."""


@pytest.fixture
def servers(
    door_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    folders = [tmp_path_factory.mktemp("run") for _ in range(2)]
    directories = [render_recipe(tiny_recipe(MODEL), *door_pair, folder).parent for folder in folders]
    with ExitStack() as running, ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda each: running.enter_context(ready_server(each)), directories)
        yield first, second


@pytest.fixture
def fleet(servers: tuple[Server, Server], tmp_path: Path) -> Iterator[FrontDoorAlone]:
    addresses = [f"127.0.0.1:{server.ports.grpc}" for server in servers]
    with front_door_alone(tmp_path, addresses) as running:
        yield running


def whole(door: FrontDoorAlone, body: dict[str, Any]) -> Answer:
    reply = httpx.post(f"{door.url}/v1/completions", json=body, timeout=_WITHIN_S, trust_env=False)
    assert reply.status_code == 200, reply.text
    return joined(reply.json()["choices"])


def joined(choices: list[dict[str, Any]]) -> Answer:
    answers: Answer = {}
    for choice in choices:
        assert "continued_elsewhere" not in choice, "both servers run on this machine"
        text, ids, log_probs, _ = answers.get(choice["index"], ("", [], [], ""))
        answers[choice["index"]] = (
            text + choice["text"],
            ids + choice["token_ids"],
            log_probs + choice["logprobs"]["token_logprobs"],
            choice["finish_reason"] or "",
        )
    return answers


class Reading:
    """A streamed answer whose rest is read later."""

    def __init__(self, client: httpx.Client, url: str, body: dict[str, Any]) -> None:
        self._stream = client.stream("POST", f"{url}/v1/completions", json={**body, "stream": True})
        self._lines = self._stream.__enter__().iter_lines()
        self._first = next(self._lines)

    def rest(self) -> Answer:
        lines = [line for line in (self._first, *self._lines) if line]
        self._stream.__exit__(None, None, None)
        assert lines.pop() == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert not [event for event in events if "error" in event]
        return joined([choice for event in events for choice in event["choices"]])


def num_continued(door: FrontDoorAlone) -> int:
    return door.log.read_text().count("continues an answer of")


def num_open(door: FrontDoorAlone, server: Server) -> float:
    page = httpx.get(f"{door.url}/metrics", timeout=_WITHIN_S, trust_env=False).text
    wanted = f'draftproof_fleet_server_open_answers{{server="127.0.0.1:{server.ports.grpc}"}} '
    return float(page.partition(wanted)[2].partition("\n")[0])


def kill(server: Server) -> None:
    os.kill(server.process.pid, signal.SIGKILL)


def stop(server: Server) -> None:
    """Stop all processes of the server, as a machine that hangs."""
    for process, _ in processes_with(str(server.directory)):
        os.kill(process.pid, signal.SIGSTOP)


def drain(server: Server) -> None:
    os.kill(server.process.pid, signal.SIGTERM)


def check_answers_survive(
    servers: tuple[Server, Server], fleet: FrontDoorAlone, fault: Callable[[Server], None]
) -> Server:
    """Begin answers of each kind, let something happen to a server, and compare them with whole ones.

    Returns the other server.
    """
    expected = {name: whole(fleet, body) for name, body in BODIES.items()}
    assert all(len(ids) > 100 for answers in expected.values() for _, ids, _, _ in answers.values())
    with httpx.Client(timeout=_WITHIN_S, trust_env=False) as client:
        reading = {name: Reading(client, fleet.url, body) for name, body in BODIES.items()}
        left, harmed = sorted(servers, key=lambda each: num_open(fleet, each))
        fault(harmed)
        after = whole(fleet, BODIES["greedy"])
        assert {name: each.rest() for name, each in reading.items()} == expected
    assert after == expected["greedy"]
    assert wait_until(lambda: f"{harmed.ports.grpc} is not ready" in fleet.log.read_text())
    return left


def test_a_killed_server_spoils_no_answer(servers: tuple[Server, Server], fleet: FrontDoorAlone) -> None:
    left = check_answers_survive(servers, fleet, kill)
    assert num_continued(fleet) > 0
    kill(left)

    def answer() -> httpx.Response:
        body = {"prompt": "a", "max_tokens": 2}
        return httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=_WITHIN_S, trust_env=False)

    refused = answer()
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert refused.json()["error"]["code"] == "unavailable"
    assert wait_until(lambda: answer().json()["error"]["what"] == "no server of the fleet answers")
    assert httpx.get(f"{fleet.url}/health", timeout=_WITHIN_S, trust_env=False).status_code == 503


def test_a_stopped_server_spoils_no_answer(servers: tuple[Server, Server], fleet: FrontDoorAlone) -> None:
    check_answers_survive(servers, fleet, stop)
    assert num_continued(fleet) > 0


def test_a_drained_server_spoils_no_answer(servers: tuple[Server, Server], fleet: FrontDoorAlone) -> None:
    check_answers_survive(servers, fleet, drain)
