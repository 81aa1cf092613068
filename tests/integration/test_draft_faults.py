"""A draft that fails, hangs or is gone under a real server: requests go on with the target alone."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy import Ports, Server
from pipelines.speculation.watched_draft import LAST_PAUSE_S
from tests.draft_faults import FAILS, GONE, HANGS, HEALTHY, add_faults
from tests.integration.conftest import grpc_client, http_client, read_gauge, wait_until

pytestmark = pytest.mark.triton

SHORT = [
    CompletionRequest("import os\n", max_tokens=12, end_id=-1),
    CompletionRequest("import os\n", max_tokens=12, end_id=-1, temperature=0.9, seed=7),
]
BLS = pytest.mark.skipif(sys.version_info >= (3, 12), reason="BLS of Triton 2.51 crashes: see bls_engines.py")

UNLOADED = "unloaded"
RECOVERY_S = 2 * LAST_PAUSE_S


@pytest.fixture
def start(render: Callable[[str, str], Path]) -> Iterator[Callable[[str], tuple[Server, Path]]]:
    """Start a server whose draft obeys a file: access -> (server, file)."""
    with ExitStack() as running:

        def make(access: str) -> tuple[Server, Path]:
            directory = render(f"tiny-faults-{access}", access)
            state = add_faults(directory, {"in_process": "speculative", "bls": "draft"}[access])
            server = running.enter_context(Server.start(directory, Ports.free()))
            server.wait_ready()
            return server, state

        yield make


def control(server: Server, action: str) -> None:
    """Load or unload the model ``draft`` through Triton's model repository API."""
    url = f"http://127.0.0.1:{server.ports.http}/v2/repository/models/draft/{action}"
    httpx.post(url, timeout=60, trust_env=False).raise_for_status()


@contextmanager
def faulty(server: Server, state: Path, fault: str) -> Iterator[None]:
    if fault == UNLOADED:
        control(server, "unload")
        yield
        control(server, "load")
    else:
        state.write_text(fault)
        yield
        state.write_text(HEALTHY)


def announcements(server: Server) -> tuple[int, int]:
    """How often the log says that the draft goes, and that it is back."""
    lines = server.log.read_text(errors="replace").splitlines()
    return (
        sum("the draft fails; requests go on with the target alone" in line for line in lines),
        sum("the draft answers again; speculation resumes" in line for line in lines),
    )


@contextmanager
def skipped_if_bls_crashes(server: Server, access: str) -> Iterator[None]:
    """The defect of Triton's Python backend, see ``bls_engines.py``, may strike any call through BLS."""
    try:
        yield
    except Exception:
        if access == "bls" and re.search(
            r"Signal \((6|11)\) received", server.log.read_text(errors="replace")
        ):
            pytest.skip("BLS of Triton 2.51 ended the process of the model 'speculative'")
        raise


@dataclass(frozen=True)
class Load:
    """What a server is asked; little through BLS, which ends the process after some hundred calls.

    Attributes:
        num_streams: Requests under way when the fault begins.
        num_tokens: Of each of them.
        clients: Transports of the requests that follow.
    """

    num_streams: int
    num_tokens: int
    clients: tuple[Callable[[Server], Client], ...]

    def short_answers(self, server: Server) -> list[Generation]:
        answers = []
        for connect in self.clients:
            with connect(server) as client:
                answers += [client.stream(request).result() for request in SHORT]
        return answers


@pytest.mark.parametrize(
    ("access", "fault", "load"),
    [
        *[("in_process", fault, Load(3, 400, (grpc_client, http_client))) for fault in (FAILS, HANGS, GONE)],
        *[
            pytest.param("bls", fault, Load(1, 30, (http_client,)), marks=(BLS, pytest.mark.bls))
            for fault in (FAILS, HANGS, UNLOADED)
        ],
    ],
)
def test_requests_go_on_without_the_draft_and_it_comes_back(
    start: Callable[[str], tuple[Server, Path]], access: str, fault: str, load: Load
) -> None:
    server, state = start(access)
    with (
        skipped_if_bls_crashes(server, access),
        grpc_client(server) as grpc,
        http_client(server) as http,
    ):
        long = [
            CompletionRequest(f"def f{number}(", max_tokens=load.num_tokens, end_id=-1)
            for number in range(load.num_streams)
        ]
        expected = [grpc.generate(request, "generate_target").output_ids for request in long]
        alone = [grpc.generate(request, "generate_target").output_ids for request in SHORT]
        streams = [client.stream(request) for client, request in zip((grpc, http, grpc), long, strict=False)]
        for stream in streams:
            assert any(chunk.counts and chunk.counts.total_draft_tokens for chunk in stream)
        with faulty(server, state, fault):
            for stream, output_ids in zip(streams, expected, strict=True):
                answer = stream.result()
                assert answer.output_ids == output_ids
                first_without = answer.draft_lengths.index(0, 1)
                assert len(answer.draft_lengths) - first_without > 5, "the fault came too late"
                assert not any(answer.draft_lengths[first_without:])
            answers = load.short_answers(server)
            assert [answer.output_ids for answer in answers] == alone * len(load.clients)
            assert not any(answer.total_draft_tokens for answer in answers)
            assert wait_until(lambda: read_gauge(server, "draftproof_draft_available") == 0)
            assert wait_until(lambda: read_gauge(server, "draftproof_draft_failures_total") >= 1)
            assert announcements(server) == (1, 0)
        assert wait_until(lambda: grpc.generate(SHORT[0]).total_draft_tokens > 0, RECOVERY_S)
        assert wait_until(lambda: read_gauge(server, "draftproof_draft_available") == 1)
        assert announcements(server) == (1, 1)
        answers = load.short_answers(server)
        assert [answer.output_ids for answer in answers] == alone * len(load.clients)
        assert all(answer.total_draft_tokens for answer in answers)


def test_where_the_draft_length_follows_the_moment_requests_go_on_too(
    start: Callable[[str], tuple[Server, Path]],
) -> None:
    server, state = start("in_process")
    (server.directory / "draft_length.json").write_text('{"num_draft_tokens": null}')
    with grpc_client(server) as client, faulty(server, state, FAILS):
        for request in SHORT:
            answer = client.generate(request)
            assert answer.draft_length == "adaptive"
            assert answer.output_ids == client.generate(request, "generate_target").output_ids
        assert announcements(server) == (1, 0)


def test_in_process_the_draft_does_not_depend_on_the_model_of_that_name(
    start: Callable[[str], tuple[Server, Path]],
) -> None:
    server, state = start("in_process")
    with grpc_client(server) as client, faulty(server, state, UNLOADED):
        assert client.generate(SHORT[0]).total_draft_tokens > 0
    assert announcements(server) == (0, 0)
