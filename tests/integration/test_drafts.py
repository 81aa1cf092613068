"""Tests of drafts on real servers: of each kind, failing, hanging, gone: answers are the target's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from build.engines import build_engines
from build.recipe import parse_recipe
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.speculation.watched_draft import LAST_PAUSE_S
from tests.integration.conftest import (
    grpc_client,
    http_client,
    keep_models,
    read_gauge,
    target_alone,
    tiny_recipe,
    wait_until,
)
from tests.support.checkpoints import make_checkpoint
from tests.support.draft_faults import FAILS, GONE, HANGS, HEALTHY, SLOW, add_faults
from tests.support.partly_shared import share_part
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair

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


PROMPT = "def add(first, second):\n    return first + second\n\n" * 3
GREEDY = CompletionRequest(PROMPT, max_tokens=48, end_id=-1)
SAMPLED = replace(GREEDY, temperature=0.9, top_k=200, seed=3)
GUIDED = replace(SAMPLED, guide=("regex", r'\{"first": [0-9a-f]{16}, "second": [0-9a-f]{16}\}'))


# By day, test_recurrent_states.py has the hybrid in this process.
@pytest.fixture(scope="module", params=["tokenizer", "head", pytest.param("hybrid", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("pair")
    makers = {"tokenizer": another_tokenizer, "head": trained_head, "hybrid": hybrid_target}
    rendered = makers[request.param](folder)
    keep_models(rendered, "speculative", "router")
    with ready_server(rendered.parent) as server, grpc_client(server) as client:
        yield client


def trained_head(folder: Path) -> Path:
    engines = build_tiny_pair(folder, draft="head", linear="draftproof", attention="draftproof")
    return render_recipe(tiny_recipe("head"), *engines, folder / "r")


def hybrid_target(folder: Path) -> Path:
    own = {"linear": "draftproof", "attention": "draftproof"}
    engines = build_tiny_pair(folder, draft="self", target="hybrid", **own)
    return render_recipe(tiny_recipe("hybrid"), *engines, folder / "r")


def another_tokenizer(folder: Path) -> Path:
    make_checkpoint(folder / "target")
    share_part(folder / "target", folder / "draft", 1500)
    raw = {
        "name": "shared",
        "target": {"checkpoint": str(folder / "target"), "kv_cache": {"num_blocks": 128}},
        "draft": {"checkpoint": str(folder / "draft"), "kv_cache": {"num_blocks": 128}},
        "serving": {"max_batch_size": 4, "max_num_tokens": 128, "max_seq_len": 256},
    }
    path = folder / "shared.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    recipe = parse_recipe(raw, path)
    built = build_engines(recipe, folder / "engines", lambda line: None)
    engines = Path(built["draft"]), Path(built["target"])
    return render_recipe(recipe, *engines, folder / "r")


@pytest.mark.parametrize("request_", [GREEDY, SAMPLED, GUIDED], ids=["greedy", "sampled", "guided"])
@pytest.mark.parametrize("num_draft_tokens", [None, 1, 4, 8])
def test_an_answer_is_the_targets_own(
    client: Client, request_: CompletionRequest, num_draft_tokens: int | None
) -> None:
    alone = target_alone(client, request_)
    answer = client.generate(replace(request_, num_draft_tokens=num_draft_tokens))
    assert answer.output_ids == alone.output_ids and answer.text == alone.text
    if num_draft_tokens is not None:  # on a busy machine the adaptive length may be 0
        assert answer.total_accepted_draft_tokens > 0


@pytest.mark.parametrize("request_", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_streams_and_stop_words_are_the_targets_own(client: Client, request_: CompletionRequest) -> None:
    alone = target_alone(client, request_)
    with client.stream(replace(request_, num_draft_tokens=4)) as stream:
        streamed = "".join(chunk.text for chunk in stream)
    assert streamed == alone.text
    word = re.findall("[!-~]{2,}", alone.text)[0]
    stopped = client.generate(replace(request_, num_draft_tokens=4, stop_words=(word,)))
    assert stopped.text == alone.text[: alone.text.index(word)] and stopped.finish_reason == "stop"
    banned = replace(request_, bad_words=(word,))
    answer = client.generate(replace(banned, num_draft_tokens=4))
    assert answer.output_ids == target_alone(client, banned).output_ids and word not in answer.text


@pytest.mark.parametrize("client", ["tokenizer"], indirect=True)
@pytest.mark.parametrize(("length", "drafts"), [(120, True), (130, False)])
def test_the_target_goes_on_where_the_context_is_too_long_for_the_draft(
    client: Client, length: int, drafts: bool
) -> None:
    """The draft lacks this token, which takes two of its 256 positions."""
    long = replace(GREEDY, prompt="ing" * length, max_tokens=40)
    alone = target_alone(client, long)
    answer = client.generate(replace(long, num_draft_tokens=4))
    assert answer.output_ids == alone.output_ids
    assert (answer.total_draft_tokens > 0) == drafts and answer.drafted_per_round[-1] == 0
    again = client.generate(replace(GREEDY, num_draft_tokens=4))
    assert again.total_draft_tokens > 0, "the draft is not paused"
