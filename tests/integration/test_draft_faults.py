"""Tests of a draft that fails, hangs or is gone on a real server: requests continue with the target alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.deploy.__main__ import set_draft_length
from pipelines.deploy.server import Server
from pipelines.speculation.watched_draft import LAST_PAUSE_S
from tests.integration.conftest import grpc_client, http_client, read_gauge, wait_until
from tests.support.draft_faults import FAILS, GONE, HANGS, HEALTHY, SLOW, add_faults
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton

SHORT = [
    CompletionRequest("import os\n", max_tokens=12, end_id=-1),
    CompletionRequest("import os\n", max_tokens=12, end_id=-1, temperature=0.9, seed=7),
]

RECOVERY_S = 2 * LAST_PAUSE_S

NUM_STREAMS = 3
NUM_TOKENS = 400
CLIENTS = grpc_client, http_client


@pytest.fixture(scope="module")
def obedient(render: Callable[..., Path]) -> Iterator[tuple[Server, Path]]:
    """Return a server whose draft obeys a file, and that file."""
    directory = render("tiny-faults", "router")
    state = add_faults(directory, "speculative")
    with ready_server(directory) as server:
        yield server, state


@contextmanager
def faulty(state: Path, fault: str) -> Iterator[None]:
    state.write_text(fault)
    yield
    state.write_text(HEALTHY)


def announcements(server: Server) -> tuple[int, int]:
    """Count the log's messages that the draft is left out, and that it is back."""
    lines = server.log.read_text(errors="replace").splitlines()
    return (
        sum("the draft fails; requests continue with the target alone" in line for line in lines),
        sum("the draft answers again; speculation resumes" in line for line in lines),
    )


def short_answers(server: Server) -> list[Generation]:
    answers = []
    for connect in CLIENTS:
        with connect(server) as client:
            answers += [client.stream(request).result() for request in SHORT]
    return answers


@pytest.mark.parametrize(
    "fault", [FAILS, *(pytest.param(each, marks=pytest.mark.long) for each in (GONE, HANGS))]
)
def test_requests_go_on_without_the_draft_and_it_comes_back(
    obedient: tuple[Server, Path], fault: str
) -> None:
    server, state = obedient
    before = announcements(server)
    num_failures = read_gauge(server, "draftproof_draft_failures_total")
    with grpc_client(server) as grpc, http_client(server) as http:
        long = [
            CompletionRequest(f"def f{number}(", max_tokens=NUM_TOKENS, end_id=-1)
            for number in range(NUM_STREAMS)
        ]
        expected = [grpc.generate(request, "generate_target").output_ids for request in long]
        alone = [grpc.generate(request, "generate_target").output_ids for request in SHORT]
        state.write_text(SLOW)
        streams = [client.stream(request) for client, request in zip((grpc, http, grpc), long, strict=False)]
        for stream in streams:
            assert any(chunk.counts and chunk.counts.total_draft_tokens for chunk in stream)
        with faulty(state, fault):
            for stream, output_ids in zip(streams, expected, strict=True):
                answer = stream.result()
                assert answer.output_ids == output_ids
                first_without = answer.drafted_per_round.index(0, 1)
                assert len(answer.drafted_per_round) - first_without > 5, "the fault came too late"
                assert not any(answer.drafted_per_round[first_without:])
            answers = short_answers(server)
            assert [answer.output_ids for answer in answers] == alone * len(CLIENTS)
            assert not any(answer.total_draft_tokens for answer in answers)
            assert wait_until(lambda: read_gauge(server, "draftproof_draft_available") == 0)
            assert wait_until(lambda: read_gauge(server, "draftproof_draft_failures_total") > num_failures)
            assert announcements(server) == (before[0] + 1, before[1])
        assert wait_until(lambda: grpc.generate(SHORT[0]).total_draft_tokens > 0, RECOVERY_S)
        assert wait_until(lambda: read_gauge(server, "draftproof_draft_available") == 1)
        assert announcements(server) == (before[0] + 1, before[1] + 1)
        answers = short_answers(server)
        assert [answer.output_ids for answer in answers] == alone * len(CLIENTS)
        assert all(answer.total_draft_tokens for answer in answers)


def test_where_the_draft_length_follows_the_moment_requests_go_on_too(obedient: tuple[Server, Path]) -> None:
    server, state = obedient
    before = announcements(server)
    setting = set_draft_length(server.directory, "adaptive")
    with grpc_client(server) as client, faulty(state, FAILS):
        for request in SHORT:
            answer = client.generate(request)
            assert answer.draft_length == "adaptive"
            assert answer.output_ids == client.generate(request, "generate_target").output_ids
        assert announcements(server) == (before[0] + 1, before[1])
    setting.unlink()
