"""Tests with randomly damaged requests from fixed seeds, beside a client whose answers must not change."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import Counter

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.triton.supervision.model_processes import find_model_processes
from tests.attacks.fuzz import Sent, fuzz
from tests.integration.conftest import grpc_client, target_alone, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.long]

REQUEST = CompletionRequest("def main(", max_tokens=40, temperature=1.0, seed=3, end_id=-1)


def _processes(server: Server) -> set[object]:
    return {*find_model_processes(prefix_of(server.directory)).values(), server.process}


def _fuzz(server: Server, seed: int, count: int) -> list[Sent]:
    """Send damaged requests while a client streams; return the improper replies."""
    before = _processes(server)
    done, answers = threading.Event(), []
    with grpc_client(server) as client:
        expected = target_alone(client, REQUEST).output_ids

        def stream() -> None:
            while not done.is_set():
                answers.append(client.stream(dataclasses.replace(REQUEST), "generate").result().output_ids)

        streaming = threading.Thread(target=stream)
        streaming.start()
        try:
            addresses = ("127.0.0.1", server.ports.http), ("127.0.0.1", server.ports.grpc)
            sent = list(itertools.islice(fuzz(*addresses, seed), count))
        finally:
            done.set()
            streaming.join()
    assert len(answers) > 1
    assert set(answers) == {expected}
    assert wait_until(server.is_ready)
    assert _processes(server) == before, "a process was replaced"
    statuses = Counter(each.reply.status for each in sent)
    assert statuses["200"] > 0 and statuses["400"] > 0 and statuses["INVALID_ARGUMENT"] > 0, statuses
    return [each for each in sent if not each.is_proper]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_damaged_request_is_refused_or_answered_and_harms_nobody(server: Server, seed: int) -> None:
    assert _fuzz(server, seed, 400) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 110))
def test_many_more_damaged_requests(server: Server, seed: int) -> None:
    assert _fuzz(server, seed, 4000) == []
