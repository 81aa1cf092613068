"""Tests of the gates for other rollout tools, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pipelines.canary.gates import MAX_BODY_BYTES, serve
from pipelines.canary.report.record import RolloutRecord, Transition
from pipelines.errors import CanaryError
from tests.unit.canary.requests import request
from tests.unit.canary.rollouts import rollout

FLAGGER = {"name": "draftproof", "namespace": "test", "phase": "Progressing", "checksum": "85d557f47b"}
FAILING = rollout(requests=(request(0, answer="diverged"),))
PROMOTED = rollout(
    phase="promoted", transitions=(Transition(9.0, "step/3", "promoting", "all within limits", {}, {}),)
)

ABORTED = rollout(
    phase="aborted",
    transitions=(Transition(9.0, "step/1", "rolling_back", "an operator", {"verdict": "inconclusive"}, {}),),
)

WAITING = rollout(phase="paused", transitions=(Transition(9.0, "cold_start", "paused", "10 % less", {}, {}),))


class Gates:
    """A server of gates, and the record that it reads next."""

    def __init__(self, port: int) -> None:
        self.record: RolloutRecord | Exception = rollout()
        self.port = port
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)

    def verdict(self, query: str = "") -> Any:
        return self.client.get(f"/verdict{query}").raise_for_status().json()

    def hook(self, name: str, query: str = "") -> int:
        return self.client.post(f"/gate/{name}{query}", json=FLAGGER).status_code


@pytest.fixture
def gates() -> Iterator[Gates]:
    def read() -> RolloutRecord:
        if isinstance(found.record, Exception):
            raise found.record
        return found.record

    ports: queue.Queue[int] = queue.Queue()
    loop = asyncio.new_event_loop()
    serving = loop.create_task(serve(read, "127.0.0.1", 0, ports.put))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    found = Gates(ports.get(timeout=120))
    with found.client:
        yield found
    stopped = asyncio.run_coroutine_threadsafe(_cancelled(serving), loop)
    stopped.result(timeout=120)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_the_verdict_is_json_that_argo_can_test(gates: Gates) -> None:
    found = gates.verdict()
    assert (found["verdict"], found["action"], found["phase"]) == ("inconclusive", "go_on", "step/1")
    assert (found["canary_id"], found["candidate"], found["still_needed"]) == ("c1", "demo-int8", 50)
    gates.record = FAILING
    assert gates.verdict()["verdict"] == "fail"
    gates.record = PROMOTED
    assert gates.verdict()["verdict"] == "pass"
    assert gates.verdict()["reason"] == "all within limits"


def test_the_verdict_on_another_candidate_is_none(gates: Gates) -> None:
    """Otherwise a rollout that has not begun would pass by the previous one's verdict."""
    gates.record = PROMOTED
    assert gates.verdict("?candidate=demo-int8")["verdict"] == "pass"
    other = gates.verdict("?candidate=demo-int4")
    assert (other["verdict"], other["action"], other["canary_id"]) == ("inconclusive", "go_on", "")
    assert other["reason"] == "no rollout of demo-int4: the latest is of demo-int8"
    assert gates.hook("confirm-promotion", "?candidate=demo-int4") == 503


@pytest.mark.parametrize(
    ("record", "rollout_hook", "traffic", "promotion", "rollback"),
    [
        (rollout(), 200, 200, 503, 503),
        (FAILING, 503, 503, 503, 200),
        (PROMOTED, 200, 200, 200, 503),
        (ABORTED, 503, 503, 503, 200),
        (WAITING, 200, 503, 503, 503),
    ],
    ids=["going on", "failing", "promoted", "aborted", "waiting for a person"],
)
def test_flagger_is_told_by_status_codes(
    gates: Gates, record: RolloutRecord, rollout_hook: int, traffic: int, promotion: int, rollback: int
) -> None:
    gates.record = record
    assert gates.hook("rollout") == rollout_hook
    assert gates.hook("confirm-traffic-increase") == traffic
    assert gates.hook("confirm-promotion") == promotion
    assert gates.hook("rollback") == rollback


def test_a_gate_that_cannot_know_stays_shut_and_says_why(gates: Gates) -> None:
    gates.record = CanaryError("no rollout was begun", values="none", limit="one", remedy="begin one")
    for name in ("rollout", "confirm-promotion", "rollback"):
        assert gates.hook(name) == 503
    answer = gates.client.get("/verdict")
    assert answer.status_code == 503
    assert answer.json() == {
        "error": {
            "code": "canary",
            "what": "no rollout was begun",
            "values": "none",
            "limit": "one",
            "remedy": "begin one",
        }
    }


def test_a_defect_shows_no_traceback(gates: Gates, caplog: pytest.LogCaptureFixture) -> None:
    gates.record = RuntimeError("secret")
    answer = gates.client.get("/verdict")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in answer.text and "Traceback" not in answer.text
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/gate/promotion", 404),
        ("POST", "/verdict", 405),
        ("GET", "/gate/rollout", 405),
        ("GET", "/verdict?candidat=x", 400),
        ("GET", "/verdict?candidate=x&candidate=y", 400),
        ("PUT", "/verdict", 405),
    ],
)
def test_unknown_paths_and_methods_are_refused_as_json(
    gates: Gates, method: str, path: str, status: int
) -> None:
    answer = gates.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["error"]["what"]
    assert answer.headers.get("allow", "") == {"/verdict": "GET", "/gate/rollout": "POST"}.get(path, "") * (
        status == 405
    )


def test_a_body_that_is_too_long_is_refused(gates: Gates) -> None:
    answer = gates.client.post("/gate/rollout", content=b"x" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["limit"].endswith(f"{MAX_BODY_BYTES} bytes")


def test_gates_answer_while_another_client_dawdles_and_goes(
    gates: Gates, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", gates.port), timeout=120) as slow:
        slow.sendall(b"POST /gate/rollout HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
        assert gates.verdict()["verdict"] == "inconclusive"
    assert gates.verdict()["verdict"] == "inconclusive"
    assert capfd.readouterr().err == ""
