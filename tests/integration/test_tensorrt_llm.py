"""Tests of the loop on NVIDIA's models, behind a real Triton."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.errors import InvalidRequestError
from tests.integration.conftest import grpc_client, http_client, read_gauge, target_alone, wait_until
from tests.stand_in_tensorrt_llm.repository import MAX_DRAFT_LEN, MAX_SEQ_LEN
from tests.stand_in_tensorrt_llm.served import Served

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("nvidia"), pytest.mark.long]

MODELS = ("generate", "generate_target")
PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__", "naïve café ☕ ")


@pytest.fixture(params=["grpc", "http"])
def client(request: pytest.FixtureRequest, nvidia: Served) -> Any:
    with {"grpc": grpc_client, "http": http_client}[request.param](nvidia.server) as connected:
        yield connected


@pytest.mark.parametrize("num_draft_tokens", [None, 0, 1, 4, MAX_DRAFT_LEN])
def test_greedy_answers_are_the_targets_own(client: Client, num_draft_tokens: int | None) -> None:
    drafted = accepted = 0
    reasons = set()
    for prompt in PROMPTS:
        request = CompletionRequest(prompt, max_tokens=60, num_draft_tokens=num_draft_tokens)
        answer = client.generate(request)
        expected = target_alone(client, request)
        assert answer.output_ids == expected.output_ids
        assert (answer.text, answer.finish_reason) == (expected.text, expected.finish_reason)
        assert answer.draft_length == str(MAX_DRAFT_LEN if num_draft_tokens is None else num_draft_tokens)
        assert sum(answer.accepted_mask) == answer.total_accepted_draft_tokens
        drafted += answer.total_draft_tokens
        accepted += answer.total_accepted_draft_tokens
        reasons.add(answer.finish_reason)
    assert (0 < accepted <= drafted) == (num_draft_tokens != 0)
    assert reasons == {"stop", "length"}, "the prompts must end both ways, or this shows less than it says"


ALONE = {
    "sampling without use_draft_logits": {"temperature": 0.8, "seed": 3},
    "penalties": {"repetition_penalty": 1.3},
    "min_tokens": {"min_tokens": 20, "end_id": 0},
    "bad_words": {"bad_words": ("qqqq",)},
}


@pytest.mark.parametrize("reason", ALONE)
def test_what_rounds_would_forget_the_target_answers_alone_and_it_is_said(
    nvidia: Served, reason: str
) -> None:
    request = CompletionRequest(PROMPTS[1], max_tokens=30, **ALONE[reason])
    with grpc_client(nvidia.server) as client:
        with nvidia.asked("target") as asked, nvidia.asked("draft") as drafted:
            answer = client.generate(request)
        assert (answer.draft_length, answer.total_draft_tokens) == (f"off: {reason}", 0)
        assert drafted == []
        assert [one["request_output_len"] for one in asked if "id" in one] == [[30]], "one request, undivided"
        expected = client.generate(request, "generate_target")
        assert answer.output_ids == expected.output_ids


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"min_p": 0.1}, "has no input"),
        ({"temperature": 1.0, "top_k": 1025}, "clips"),
        ({"num_log_probs": 0}, "which returns zeros"),
        ({"num_log_probs": 2}, "which returns zeros"),
        ({"max_tokens": MAX_SEQ_LEN}, "max_seq_len"),
        ({"max_tokens": 0}, "max_tokens is out of range"),
        ({"min_tokens": 3}, "with 2 end tokens"),
    ],
)
def test_what_the_target_cannot_do_is_refused(
    client: Client, model: str, parameters: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        client.generate(CompletionRequest("x", **parameters), model)


@pytest.mark.parametrize(
    ("model", "engine_model", "engine"),
    [("generate", "speculative", "pair"), ("generate_target", "target_alone", "target")],
)
def test_a_client_that_leaves_ends_the_work_at_nvidias_models(
    client: Client, nvidia: Served, model: str, engine_model: str, engine: str
) -> None:
    def running() -> float:
        return read_gauge(nvidia.server, "draftproof_requests_running", model=engine_model, engine=engine)

    assert wait_until(lambda: running() == 0)
    with nvidia.asked("target") as asked:
        wanted = 0 if model == "generate" else None
        request = CompletionRequest("def main(", max_tokens=400, end_id=-1, num_draft_tokens=wanted)
        stream = client.stream(request, model)
        next(stream)
        stream.close()
        assert wait_until(lambda: running() == 0)
        assert wait_until(lambda: "cancelled_after" in nvidia.requests("target")[-1])
    assert asked[-1]["cancelled_after"] < 300


def test_a_draft_that_fails_is_left_out_and_comes_back(nvidia: Served) -> None:
    request = CompletionRequest(PROMPTS[2], max_tokens=40, num_draft_tokens=4)
    with grpc_client(nvidia.server) as client:
        expected = target_alone(client, request)
        with nvidia.failing("draft"):
            answer = client.generate(request)
        assert (answer.output_ids, answer.total_draft_tokens) == (expected.output_ids, 0)
        is_available = partial(read_gauge, nvidia.server, "draftproof_draft_available", model="speculative")
        assert wait_until(lambda: is_available() == 0)
        assert wait_until(lambda: client.generate(request).total_draft_tokens > 0)
        assert wait_until(lambda: is_available() == 1)
        assert client.generate(request).output_ids == expected.output_ids
