"""Tests of attention of our own on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.deploy.server import Server
from tests.integration.conftest import target_alone, tiny_recipe
from tests.support.compiler import needs_compiler
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair

# test_row_rule.py and test_many_threads.py show in this process that rows are equal in bits.
pytestmark = [pytest.mark.triton, pytest.mark.long, needs_compiler]

PATIENT = Timeouts(connect_s=60, read_s=240, write_s=60, total_s=480)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a ready server whose draft and target both compute attention by the operator of our own."""
    pair = build_tiny_pair(tmp_path_factory.mktemp("engines"), kv_cache_dtype="int8", attention="draftproof")
    directory = render_recipe(tiny_recipe("tiny-own"), *pair, tmp_path_factory.mktemp("run")).parent
    with ready_server(directory) as running:
        yield running


def test_requests_beside_each_other_have_the_answers_of_the_target_alone(server: Server) -> None:
    requests = [
        CompletionRequest(
            prompt_ids=tuple((7 * index + seed) % 2000 + 1 for index in range(length)),
            max_tokens=80,
            num_draft_tokens=drafted,
            temperature=temperature,
            seed=seed,
        )
        for seed, (length, drafted, temperature) in enumerate(
            [(3, 4, 0.0), (380, 8, 0.0), (33, 1, 0.8), (31, None, 0.0), (420, 5, 0.8), (100, 0, 0.0)]
        )
    ]

    def answer(request: CompletionRequest) -> tuple[int, ...]:
        with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", PATIENT, server.key) as client:
            return tuple(client.generate(request).output_ids)

    with ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(answer, requests))
    with Client.connect(f"http://127.0.0.1:{server.ports.http}", PATIENT, server.key) as client:
        alone = [tuple(target_alone(client, request).output_ids) for request in requests]
    assert together == alone
    assert max(map(len, alone)) == 80
