"""Drills of the gates with the requests of Argo Rollouts, Flagger and our job for KServe.

The bytes are those that the tools' Go clients write: argo-rollouts @9f8d111d (metricproviders/webmetric),
flagger @15bd6ad5 (pkg/controller/webhook.go). What they make of an answer is written down from there, too.
Addresses, hooks and conditions come from the examples in ``deploy``, and the job's command runs as it is.
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipelines.asyncio_thread import AsyncioThread
from pipelines.canary.gates import serve
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import CanaryError
from tests.support.deployment_files import DEPLOY, Document, box, documents, pod
from tests.unit.canary.requests import moved, request, rollout
from tests.unit.canary.test_gates import Gates

ARGO = documents(DEPLOY / "rollouts" / "argo-rollouts.yaml")
FLAGGER = documents(DEPLOY / "rollouts" / "flagger.yaml")
KSERVE = documents(DEPLOY / "kserve" / "canary.yaml")
[_PATCH] = documents(DEPLOY / "rollouts" / "gates.yaml")


def of_kind(found: list[Document], kind: str) -> Document:
    return next(each for each in found if each["kind"] == kind)


def allowed_hosts(container: Document) -> list[str]:
    return [after for word, after in itertools.pairwise(container["command"]) if word == "--allow-host"]


_PACKAGE = next(each for each in KSERVE if each["metadata"]["name"] == "draftproof-package")
HOSTS = [
    host
    for spec in (_PATCH["spec"]["template"]["spec"], _PACKAGE["spec"]["template"])
    for host in allowed_hosts(box(spec, "gates"))
]


@pytest.fixture
def gates() -> Iterator[Gates]:
    """The gates, which know the names that the examples allow and no others."""
    ports: queue.Queue[int] = queue.Queue()
    found, thread = Gates(), AsyncioThread("gates")
    thread.start()
    serving = thread.spawn(serve(found.read, "127.0.0.1", 0, ports.put, HOSTS))
    found.port = ports.get(timeout=120)
    yield found
    serving.cancel()
    thread.stop()


def exchange(port: int, head: list[str], body: bytes = b"") -> tuple[int, str]:
    """Send a request as it stands, and return status and body of the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        with connection.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
            headers = {}
            while line := answer.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            return status, answer.read(int(headers["content-length"])).decode()


def asked_by_argo(port: int, candidate: str) -> str:
    """Return the phase that Argo gives a measurement."""
    [metric] = of_kind(ARGO, "AnalysisTemplate")["spec"]["metrics"]
    url = urlsplit(metric["provider"]["web"]["url"].replace("{{args.candidate}}", candidate))
    go = ["User-Agent: Go-http-client/1.1", "Accept-Encoding: gzip"]
    head = [f"GET {url.path}?{url.query} HTTP/1.1", f"Host: {url.netloc}", *go]
    status, body = exchange(port, head)
    if not 200 <= status < 300:
        return "Error"
    result = json.loads(body)
    for phase, condition in (("Failed", "failureCondition"), ("Successful", "successCondition")):
        found = re.fullmatch(r'result\.(\w+) == "(\w+)"', metric[condition])
        assert found is not None
        if result[found[1]] == found[2]:
            return phase
    return "Inconclusive"


def asked_by_flagger(port: int) -> dict[str, str]:
    """Return what Flagger makes of each hook: "" if it passes, else the error that it may show."""
    found = {}
    for hook in of_kind(FLAGGER, "Canary")["spec"]["analysis"]["webhooks"]:
        url = urlsplit(hook["url"])
        payload = {
            "name": "draftproof",
            "namespace": "default",
            "phase": "Progressing",
            "checksum": "85d557f47b",
        }
        body = json.dumps(payload, separators=(",", ":")).encode()
        head = [
            f"POST {url.path}?{url.query} HTTP/1.1",
            f"Host: {url.netloc}",
            "User-Agent: Go-http-client/1.1",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            "Accept-Encoding: gzip",
        ]
        status, text = exchange(port, head, body)
        # go-retryablehttp gives up on 5xx without the body.
        shown = text if status < 500 else f"POST {hook['url']} giving up after 1 attempt(s)"
        found[hook["type"]] = shown if status > 202 else ""
    return found


def record_of(candidate: str, *transitions: Any, phase: str = "step/1", **changes: Any) -> RolloutRecord:
    record = rollout(phase, *transitions, **changes)
    return replace(record, rollout=replace(record.rollout, recipe_candidate=candidate))


DEMO = "/packages/demo"
NO_ROLLOUT = CanaryError("no rollout was begun", "begin one")
BEFORE = record_of("/packages/last", phase="promoted")
RUNNING = record_of(DEMO)
FAILING = record_of(DEMO, requests=(request(0, answer="diverged"),))
PROMOTED = record_of(DEMO, moved("step/3", "promoting", "all within limits"), phase="promoted")


@pytest.mark.parametrize(
    ("record", "phase", "passing"),
    [
        (NO_ROLLOUT, "Error", set()),
        (BEFORE, "Inconclusive", {"rollout"}),
        (RUNNING, "Inconclusive", {"rollout"}),
        (FAILING, "Failed", {"rollback"}),
        (PROMOTED, "Successful", {"rollout", "confirm-promotion"}),
    ],
    ids=["none yet", "one of another candidate", "running", "failing", "promoted"],
)
def test_argo_and_flagger_draw_the_right_conclusions(
    gates: Gates, record: RolloutRecord | CanaryError, phase: str, passing: set[str]
) -> None:
    gates.record = record
    assert asked_by_argo(gates.port, DEMO) == phase
    assert {hook for hook, error in asked_by_flagger(gates.port).items() if not error} == passing


def test_flagger_can_show_why_a_gate_is_closed(gates: Gates) -> None:
    gates.record = FAILING
    shown = json.loads(asked_by_flagger(gates.port)["rollout"])
    assert (shown["is_open"], shown["action"]) == (False, "roll_back")
    assert shown["reason"]


def test_the_job_for_kserve_waits_until_the_candidate_is_promoted(gates: Gates) -> None:
    [gate, *patches] = pod(of_kind(KSERVE, "Job"))["initContainers"]
    candidate = "/packages/next"
    assert gate["command"][-1].endswith(f"?candidate={candidate}")
    assert [patch["command"][:4] for patch in patches] == [
        ["kubectl", "patch", "llminferenceservice", "draftproof-v2"]
    ]
    # Its service leads to this server, and it is in less of a hurry.
    command = [{"30": "1"}.get(word, word) for word in gate["command"]]
    command += ["--connect-to", f"::127.0.0.1:{gates.port}"]
    gates.record = NO_ROLLOUT
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    try:
        assert "503" in job.stderr.readline()
        gates.record = record_of(candidate)
        assert any("409" in job.stderr.readline() for _ in range(5)), "several lines a try"
        gates.record = replace(PROMOTED, rollout=replace(PROMOTED.rollout, recipe_candidate=candidate))
        answer, _ = job.communicate(timeout=60)
    finally:
        job.kill()
        job.communicate()
    assert (job.returncode, json.loads(answer)["is_open"]) == (0, True)


def test_another_name_is_refused_as_every_web_page_would_be(gates: Gates) -> None:
    gates.record = PROMOTED
    status, body = exchange(gates.port, ["GET /verdict HTTP/1.1", "Host: gates.attacker.example:8010"])
    assert status == 403
    assert "gates.attacker.example" in json.loads(body)["error"]["message"]
