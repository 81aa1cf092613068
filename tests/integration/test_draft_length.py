"""Tests of the draft length on a real server: adaptive, fixed, changed while it runs, and in the metrics."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.canary.judge.pairing import Pair, matched_rounds
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.deploy.triton.models import rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.router.observation import Observation
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.wire.calls import stream
from pipelines.wire.chunk import TOKEN_SOURCES, Chunk
from pipelines.wire.messages import EngineRequest
from tests.integration.conftest import MAX_DRAFT_LEN, grpc_client, post, read_gauge, wait_until

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

PROMPTS = ("def main():\n", "import os\n", "class Reader:\n", "x = 1\nx = 1\nx = 1\nx = 1\n", "naïve ☕")
REQUEST = CompletionRequest("def main():\n", max_tokens=60, end_id=-1)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with grpc_client(server) as connected:
        yield connected


@pytest.fixture
def setting(server: Server) -> Iterator[Path]:
    """Return the file that sets the running server's draft length; remove it afterwards."""
    path = server.directory / "draft_length.json"
    yield path
    path.unlink(missing_ok=True)


def test_the_draft_length_is_set_while_the_server_runs(client: Client, setting: Path) -> None:
    of_the_recipe = client.generate(REQUEST)
    assert of_the_recipe.total_draft_tokens > 0 and of_the_recipe.draft_length == "4"
    setting.write_text(json.dumps({"num_draft_tokens": 0}))
    off = client.generate(REQUEST)
    assert off.total_draft_tokens == 0 and off.draft_length == "0"
    assert client.generate(replace(REQUEST, num_draft_tokens=2)).total_draft_tokens > 0
    setting.write_text(json.dumps({"num_draft_tokens": 2}))
    fixed = client.generate(REQUEST)
    assert fixed == replace_times(client.generate(replace(REQUEST, num_draft_tokens=2)), fixed)
    setting.write_text(json.dumps({"num_draft_tokens": None}))
    assert client.generate(REQUEST).draft_length == "adaptive"
    setting.unlink()
    assert client.generate(REQUEST).draft_length == "4"


def replace_times(generation: Generation, like: Generation) -> Generation:
    return replace(generation, e2e_latency_s=like.e2e_latency_s, ttft_s=like.ttft_s, seed=like.seed)


def test_drafts_are_looked_up_in_a_sessions_earlier_answers(client: Client, setting: Path) -> None:
    setting.write_text(json.dumps({"num_draft_tokens": None}))
    expected = client.generate(REQUEST, "generate_target").output_ids

    def looked_up(session_id: str) -> int:
        return num_looked_up(client, replace(REQUEST, session_id=session_id), expected)

    first, second = looked_up("conversation ☕"), looked_up("conversation ☕")
    assert second > first + len(expected) // 3
    assert looked_up("another") <= first + len(expected) // 6


@pytest.mark.parametrize(("temperature", "seed"), [(0.0, 0), (0.9, 11)])
def test_an_answer_does_not_depend_on_its_prediction(
    client: Client, server: Server, setting: Path, temperature: float, seed: int
) -> None:
    """All at once; predictions are tokens, since the text of a random target is tokenized otherwise."""
    setting.write_text(json.dumps({"num_draft_tokens": None}))
    prompt = tuple(b"def main():")
    alone = CompletionRequest(prompt_ids=prompt, max_tokens=60, end_id=-1, temperature=temperature, seed=seed)
    expected = list(client.generate(alone, "generate_target").output_ids)
    others = [token for token in range(256) if token not in (*expected, *prompt)][:60]
    edited = [
        other if at % 15 == 7 else token
        for at, (token, other) in enumerate(zip(expected, others, strict=True))
    ]
    socket = Path(rendered_parameters(server.directory, LOOP)["socket"])

    sampling = SamplingParams(temperature=float(np.float32(temperature)), seed=seed)
    plain = EngineRequest(prompt, 60, sampling=sampling, end_id=-1, streaming=False)

    async def ask(prediction: list[int]) -> Chunk:
        asked = replace(plain, prediction_ids=tuple(prediction))
        return [chunk async for chunk in stream(socket, asked)][-1]

    async def ask_all() -> list[Chunk]:
        return await asyncio.gather(*map(ask, (expected, edited, others, expected[20:] + others, [])))

    answers = asyncio.run(ask_all())
    assert [list(answer.output_ids) for answer in answers] == [expected] * len(answers)
    (right, right_rejected), (partly, partly_rejected), (wrong, _), _, nothing = (
        (answer.counts.accepted_prediction_tokens, answer.counts.rejected_prediction_tokens)
        for answer in answers
        if answer.counts is not None
    )
    # A server that is busy may find no looked-up token worth its time where it would be rejected.
    assert min(right, partly) > 0 == wrong and partly_rejected >= right_rejected
    assert nothing == (0, 0)


def num_looked_up(client: Client, request: CompletionRequest, expected: Sequence[int]) -> int:
    """Return how many tokens of an answer, which must be the target's own, were looked up."""
    chunks = list(client.stream(request))
    assert tuple(token_id for chunk in chunks for token_id in chunk.output_ids) == expected
    sources = [source for chunk in chunks for source in chunk.token_sources]
    return sources.count(TOKEN_SOURCES.index("lookup"))


def test_speculation_is_seen_on_the_metrics_port(client: Client, server: Server) -> None:
    client.stream(REQUEST).result()
    client.stream(REQUEST, "generate_target").result()

    def text() -> str:
        url = f"http://127.0.0.1:{server.ports.metrics}/metrics"
        with urllib.request.urlopen(url, timeout=120) as response:
            return response.read().decode()

    assert wait_until(lambda: "vllm:request_time_per_output_token_seconds_count{" in text())
    assert read_gauge(server, "vllm:time_to_first_token_seconds_count") >= 2
    assert read_gauge(server, "draftproof_draft_available") == 1
    assert 0 <= read_gauge(server, "draftproof_expected_draft_tokens") <= MAX_DRAFT_LEN
    assert 0 <= read_gauge(server, "draftproof_recent_acceptance_rate") <= 1

    def by_length() -> list[float]:
        return [
            read_gauge(server, "draftproof_draft_length_total", num_draft_tokens=str(length))
            for length in range(MAX_DRAFT_LEN + 1)
        ]

    def counts_agree() -> bool:  # they are published one after the other
        rounds = by_length()
        num_verified = sum(length * count for length, count in enumerate(rounds))
        return (sum(rounds[1:]), num_verified) == (
            read_gauge(server, "vllm:spec_decode_num_drafts_total"),
            read_gauge(server, "vllm:spec_decode_num_draft_tokens_total"),
        )

    assert wait_until(counts_agree)


def test_one_pair_accepts_the_same_in_matched_rounds_however_much_it_drafts(server: Server) -> None:
    """A candidate is judged by matched rounds, because counts of whole answers depend on the draft length."""

    def ask(prompt: str, num_draft_tokens: int, **others: Any) -> tuple[list[int], Observation]:
        given = {"text_input": prompt, "max_tokens": 60, "end_id": -1, "num_draft_tokens": num_draft_tokens}
        outputs = post(server, {**given, **others}).json()
        drafted, accepted = (tuple(outputs[name]) for name in ("drafted_per_round", "accepted_per_round"))
        output_ids = outputs["output_ids"]
        assert (sum(drafted), sum(accepted), len(drafted)) == tuple(
            outputs[name] for name in ("total_draft_tokens", "total_accepted_draft_tokens", "num_rounds")
        )
        assert len(output_ids) <= sum(accepted) + len(drafted) <= len(output_ids) + 1
        answer = Observation("c", "r", "candidate", 0.0, 0.0, "low", num_common_tokens=len(output_ids))
        return output_ids, replace(answer, drafted_per_round=drafted, accepted_per_round=accepted)

    num_matched = 0
    rates = []
    for seed, prompt in enumerate(PROMPTS):
        for temperature in (0.0, 0.9):
            (few_ids, few), (many_ids, many) = (
                ask(prompt, length, temperature=temperature, seed=seed) for length in (1, MAX_DRAFT_LEN)
            )
            assert few_ids == many_ids
            matched = matched_rounds([Pair(few, many)])
            num_matched += len(matched.depth)
            assert matched.by_candidate.tolist() == matched.by_baseline.tolist()
            rates.append([sum(each.accepted_per_round) / sum(each.drafted_per_round) for each in (few, many)])
    assert num_matched >= 100
    assert any(few != many for few, many in rates)
