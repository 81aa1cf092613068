"""Tests of the gates for other rollout tools, over real HTTP."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import httpx
import pytest

from pipelines.asyncio_thread import AsyncioThread
from pipelines.canary.gates import HOOKS, MAX_BODY_BYTES, serve
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import CanaryError
from tests.unit.canary.requests import moved, request, rollout

FAILING = rollout(requests=(request(0, answer="diverged"),))
PROMOTED = rollout("promoted", moved("step/3", "promoting", "all within limits"))
ABORTED = rollout("aborted", moved("step/1", "rolling_back", verdict="inconclusive"))
WAITING = rollout("paused", moved("shadow", "paused", "an operator paused it"))


class Gates:
    """A server of gates, and the record that it reads next."""

    def __init__(self) -> None:
        self.record: RolloutRecord | CanaryError = rollout()
        self.port = 0
        self.client: httpx.Client

    def read(self) -> RolloutRecord:
        if isinstance(self.record, CanaryError):
            raise self.record
        return self.record

    def hooks(self, query: str = "") -> list[int]:
        flagger = {"name": "draftproof", "namespace": "test", "phase": "Progressing"}
        return [self.client.post(f"/gate/{hook}{query}", json=flagger).status_code for hook in HOOKS]


@pytest.fixture
def gates() -> Iterator[Gates]:
    ports: queue.Queue[int] = queue.Queue()
    found, thread = Gates(), AsyncioThread("gates")
    thread.start()
    serving = thread.spawn(serve(found.read, "127.0.0.1", 0, ports.put))
    found.port = ports.get(timeout=120)
    with httpx.Client(base_url=f"http://127.0.0.1:{found.port}", timeout=120) as found.client:
        yield found
    serving.cancel()
    thread.stop()


@pytest.mark.parametrize(
    ("record", "verdict", "open_hooks"),
    [
        (rollout(), ("inconclusive", "go_on"), {"rollout", "confirm-traffic-increase"}),
        (FAILING, ("fail", "roll_back"), {"rollback"}),
        (PROMOTED, ("pass", "promote"), {"rollout", "confirm-traffic-increase", "confirm-promotion"}),
        (ABORTED, ("inconclusive", "roll_back"), {"rollback"}),
        (WAITING, ("inconclusive", "hold"), {"rollout"}),
    ],
    ids=["going on", "failing", "promoted", "aborted", "waiting for a person"],
)
def test_argo_reads_the_verdict_and_flagger_status_codes(
    gates: Gates, record: RolloutRecord, verdict: tuple[str, str], open_hooks: set[str]
) -> None:
    gates.record = record
    found = gates.client.get("/verdict").raise_for_status().json()
    assert (found["verdict"], found["action"]) == verdict
    assert (found["canary_id"], found["candidate"], found["phase"]) == ("c1", "demo-int8", record.phase)
    assert gates.hooks() == [200 if hook in open_hooks else 409 for hook in HOOKS]


def test_the_verdict_on_another_candidate_is_none(gates: Gates) -> None:
    """Otherwise a rollout that has not begun would pass by the previous one's verdict."""
    gates.record = PROMOTED
    assert gates.client.get("/verdict?candidate=demo-int8").json()["verdict"] == "pass"
    other = gates.client.get("/verdict?candidate=demo-int4").json()
    assert (other["verdict"], other["action"], other["canary_id"]) == ("inconclusive", "go_on", "")
    assert other["reason"] == "no rollout of demo-int4: the latest is of demo-int8"
    assert dict(zip(HOOKS, gates.hooks("?candidate=demo-int4"), strict=True))["confirm-promotion"] == 409


def test_a_gate_that_cannot_know_stays_shut_and_says_why(gates: Gates) -> None:
    gates.record = CanaryError("no rollout was begun", "begin one")
    assert set(gates.hooks()) == {503}
    answer = gates.client.get("/verdict")
    parts = {"message": "no rollout was begun", "remedy": "begin one"}
    assert (answer.status_code, answer.json()) == (503, {"error": {"code": "canary", **parts}})


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/", 404, ""),
        ("POST", "/gate/promotion", 404, ""),
        ("POST", "/verdict", 405, "GET"),
        ("GET", "/gate/rollout", 405, "POST"),
        ("GET", "/verdict?candidat=x", 400, ""),
        ("GET", "/verdict?candidate=x&candidate=y", 400, ""),
        ("POST", "/gate/rollout", 413, ""),
    ],
)
def test_what_is_not_served_is_refused_as_json(
    gates: Gates, method: str, path: str, status: int, allowed: str
) -> None:
    body = b"x" * (MAX_BODY_BYTES + 1) if status == 413 else b""
    answer = gates.client.request(method, path, content=body)
    assert (answer.status_code, answer.headers.get("allow", "")) == (status, allowed)
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["error"]["message"]


def test_gates_answer_while_another_client_dawdles_and_goes(gates: Gates) -> None:
    with socket.create_connection(("127.0.0.1", gates.port), timeout=120) as slow:
        slow.sendall(b"POST /gate/rollout HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
        assert gates.hooks()[0] == 200
    assert gates.hooks()[0] == 200
