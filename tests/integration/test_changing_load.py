"""Tests of an adaptive draft length while load, texts, sampling and the server's setting change.

How much is drafted then depends on the machine and the moment. Every answer is compared with that of the
target alone, asked one request at a time.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pytest

from build.recipe import Growth
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.client.comparison import first_divergence
from pipelines.deploy.live_settings import set_draft_length
from pipelines.deploy.server import Server
from tests.integration.conftest import (
    grpc_client,
    http_client,
    keep_models,
    read_gauge,
    tiny_recipe,
    wait_until,
)
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair

# test_draft_length.py compares adaptive answers by day.
pytestmark = [pytest.mark.triton, pytest.mark.long]

# Large enough that drafting pays with one request, and small enough that it hardly does with sixteen.
TARGET_SIZE = Growth(hidden_size=512, num_layers=8, intermediate_size=1536, num_heads=16, num_kv_heads=8)

WAVES = (1, 3, 16, 8, 1, 16, 3, 8)  # concurrent requests
REQUESTS_PER_WAVE = 20
# Set one after another, each for a number of answers; most changes fall into the middle of a wave.
SETTINGS = ("adaptive", "0", "adaptive", "4")
ANSWERS_PER_SETTING = 9

TEXTS = (
    CompletionRequest("def main():\n"),
    CompletionRequest("naïve ☕ text, "),
    CompletionRequest("x = 1\n" * 12),
    # With a high repetition penalty the draft is seldom right.
    CompletionRequest("while True:\n", repetition_penalty=1.8, presence_penalty=2.0),
    # A loop from the first token, one that ends after some tokens, and one that begins after some.
    CompletionRequest("import os\n", logit_bias=((300, 40.0),)),
    CompletionRequest("class Reader:\n", logit_bias=((301, 20.0),), frequency_penalty=1.0),
    CompletionRequest("for i in range(10):\n", frequency_penalty=-2.0),
)
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9},
    {"temperature": 0.3, "top_p": 0.9, "num_log_probs": 2},
)


@dataclass(frozen=True)
class Asked:
    """One request of a wave.

    Attributes:
        request: The request to ``generate``.
        num_chunks: The number of chunks after which the client leaves; None lets the answer end.
    """

    question: CompletionRequest
    request: CompletionRequest
    num_chunks: int | None
    is_streaming: bool
    connect: Callable[[Server], Client]


@pytest.fixture(scope="module")
def adaptive_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a server with an adaptive draft length and room for the largest wave."""
    recipe = tiny_recipe("tiny-adaptive")
    serving = replace(recipe.serving, num_draft_tokens=None, max_batch_size=max(WAVES))
    pair = build_tiny_pair(tmp_path_factory.mktemp("engines"), noise=0.03, growth=TARGET_SIZE)
    repository = render_recipe(replace(recipe, serving=serving), *pair, tmp_path_factory.mktemp("run"))
    keep_models(repository, "speculative", "router")
    with ready_server(repository.parent) as running:
        yield running


def questions(rng: random.Random) -> list[CompletionRequest]:
    return [
        replace(text, max_tokens=rng.randint(12, 56), end_id=-1, seed=number, **sampling)
        for number, text in enumerate(TEXTS)
        for sampling in SAMPLING
    ]


def wave_of(questions: list[CompletionRequest], rng: random.Random) -> list[Asked]:
    def one() -> Asked:
        question = rng.choice(questions)
        request = replace(
            question,
            num_draft_tokens=rng.choice((None, None, None, None, 0, 1, 3, 8)),
            session_id=rng.choice(("", "one", "other")),
        )
        is_streaming = rng.random() < 0.7
        num_chunks = rng.randint(1, 4) if is_streaming and rng.random() < 0.15 else None
        return Asked(question, request, num_chunks, is_streaming, rng.choice((grpc_client, http_client)))

    return [one() for _ in range(REQUESTS_PER_WAVE)]


def ask(server: Server, asked: Asked) -> Generation | None:
    """Return the answer; None if the client left."""
    with asked.connect(server) as client:
        if not asked.is_streaming:
            return client.generate(asked.request)
        with client.stream(asked.request) as stream:
            chunks = list(islice(stream, asked.num_chunks))
            return stream.result() if chunks[-1].finish_reason else None


class ChangingSetting:
    """Sets one draft length of the server after another while answers are counted."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._num_answers = 0
        self._lock = threading.Lock()

    def count_answer(self) -> None:
        with self._lock:
            self._num_answers += 1
            turn, is_inside = divmod(self._num_answers, ANSWERS_PER_SETTING)
            if not is_inside:
                set_draft_length(self._server.directory, SETTINGS[turn % len(SETTINGS)])


def test_answers_are_the_targets_own_while_everything_changes(adaptive_server: Server) -> None:
    rng = random.Random(0)
    pool = questions(rng)
    with grpc_client(adaptive_server) as client:
        alone = {question: client.generate(question, "generate_target") for question in pool}
    setting = ChangingSetting(adaptive_server)
    adaptive_rounds: dict[CompletionRequest, set[tuple[int, ...]]] = defaultdict(set)
    used: dict[bool, set[str]] = defaultdict(set)
    num_cut_off = 0

    def answer(asked: Asked) -> Generation | None:
        given = ask(adaptive_server, asked)
        setting.count_answer()
        return given

    for num_at_once in WAVES:
        wave = wave_of(pool, rng)
        with ThreadPoolExecutor(num_at_once) as workers:
            answers = list(workers.map(answer, wave))
        for asked, given in zip(wave, answers, strict=True):
            if given is None:
                num_cut_off += 1
                continue
            divergence = first_divergence(alone[asked.question], given, asked.question)
            assert divergence is None, (num_at_once, asked.request, given.draft_length, divergence)
            used[asked.request.num_draft_tokens is None].add(given.draft_length)
            if given.draft_length == "adaptive" and given.drafted_per_round:
                adaptive_rounds[asked.question].add(given.drafted_per_round)

    # Make sure that the draft length did vary. First and last rounds are always short.
    assert used == {True: set(SETTINGS), False: {"0", "1", "3", "8"}}
    assert num_cut_off > 5
    every_round = [length for ways in adaptive_rounds.values() for way in ways for length in way[1:-1]]
    assert len(set(every_round)) >= 4, every_round
    # the same answer came from several draft lengths
    assert any(len(ways) > 1 for ways in adaptive_rounds.values())
    for source in ("draft_model", "lookup", "target"):
        assert read_gauge(adaptive_server, "draftproof_output_tokens_total", source=source) > 0
    assert wait_until(lambda: read_gauge(adaptive_server, "draftproof_requests_running", engine="pair") == 0)
