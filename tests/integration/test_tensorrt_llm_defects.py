"""Tests that our loop has none of the defects of NVIDIA's own loop, each by its letter.

The defects were found by reading ``tensorrt_llm_bls/1/lib/decode.py`` (docs/how-to/nvidia-gpus.md). Those of
concurrency (a), of ``min_tokens`` (e) and of stop words (g) are tested with the rest of the loop.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from pipelines.client import CompletionRequest
from pipelines.errors import EngineFailedError, InvalidRequestError
from tests.integration.conftest import grpc_client, post, target_alone
from tests.stand_in_tensorrt_llm.repository import MAX_BATCH_SIZE
from tests.stand_in_tensorrt_llm.served import Served

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("nvidia"), pytest.mark.long]

PROMPT = "import os\n"


def test_b_stream_can_be_left_out(nvidia: Served) -> None:
    answer = post(nvidia.server, {"text_input": PROMPT, "max_tokens": 8, "num_draft_tokens": 3})
    assert answer.status_code == 200, answer.text
    assert answer.json()["total_draft_tokens"] > 0


def test_c_a_round_has_ended_before_the_next(nvidia: Served) -> None:
    with nvidia.asked("target") as asked, grpc_client(nvidia.server) as client:
        client.generate(CompletionRequest(PROMPT, max_tokens=40, num_draft_tokens=4))
    # A cancelled request leaves no blocks for the next one.
    assert not [entry for entry in asked if "cancelled_after" in entry]
    lengths = [entry["input_lengths"][0] for entry in asked]
    assert lengths == sorted(lengths) and len(set(lengths)) == len(lengths)


def test_d_the_prompt_is_asked_for_and_its_loss_is_an_error(nvidia: Served) -> None:
    request = CompletionRequest(PROMPT, max_tokens=12, num_draft_tokens=4)
    with grpc_client(nvidia.server) as client:
        with nvidia.asked("target") as asked, nvidia.asked("draft") as drafted:
            client.generate(request)
        assert {entry["exclude_input_in_output"][0] for entry in (*asked, *drafted)} == {False}
        with (
            nvidia.fault("target", "loses the input"),
            pytest.raises(EngineFailedError, match="begin with its input"),
        ):
            client.generate(request)


def test_f_logit_bias_acts_in_every_round(nvidia: Served) -> None:
    request = CompletionRequest(PROMPT, max_tokens=40, num_draft_tokens=4, logit_bias=((77, 9.0), (5, -3.0)))
    with nvidia.asked("target") as asked, grpc_client(nvidia.server) as client:
        answer = client.generate(request)
        expected = target_alone(client, request)
        plain = client.generate(CompletionRequest(PROMPT, max_tokens=40), "generate_target")
    assert answer.output_ids == expected.output_ids != plain.output_ids
    assert answer.total_accepted_draft_tokens > 0
    assert len(asked) > 4 and all("embedding_bias" in entry for entry in asked[:-1])


def test_h_an_empty_stop_word_is_refused_and_token_0_ends_nothing(nvidia: Served) -> None:
    with grpc_client(nvidia.server) as client:
        with pytest.raises(InvalidRequestError, match="empty"):
            client.generate(CompletionRequest(PROMPT, stop_words=("",)))
        with nvidia.asked("target") as asked:
            request = CompletionRequest(
                PROMPT, max_tokens=20, num_draft_tokens=4, end_id=-1, logit_bias=((0, 100.0),)
            )
            answer = client.generate(request)
    assert answer.output_ids == (0,) * 20
    assert not any("stop_words_list" in entry for entry in asked)


def test_i_no_two_rounds_draw_the_same_noise(nvidia: Served) -> None:
    request = CompletionRequest(
        PROMPT, max_tokens=40, temperature=1.0, seed=11, use_draft_logits=True, num_draft_tokens=3
    )
    with (
        nvidia.asked("target") as asked,
        nvidia.asked("draft") as drafted,
        grpc_client(nvidia.server) as client,
    ):
        answer = client.generate(request)
    seeds = [entry["seed"][0] for entry in (*asked, *drafted)]
    assert len(seeds) > 10 and len(set(seeds)) == len(seeds)
    assert 11 not in seeds
    assert answer.seed == 11


def test_j_counts_are_those_of_the_whole_answer(nvidia: Served) -> None:
    with nvidia.asked("target") as asked, grpc_client(nvidia.server) as client:
        answer = client.generate(CompletionRequest(PROMPT, max_tokens=50, end_id=-1, num_draft_tokens=5))
    assert answer.total_draft_tokens == sum(entry["num_draft"] for entry in asked)
    assert answer.num_rounds == len(asked)
    assert answer.num_output_tokens == 50 == answer.total_accepted_draft_tokens + answer.num_rounds
    assert sum(answer.accepted_per_position) == answer.total_accepted_draft_tokens


def test_k_requests_do_not_wait_for_an_instance(nvidia: Served) -> None:
    """There is one instance of ``speculative``, and the rounds of all requests take turns."""
    text = (nvidia.directory / "model_repository" / "speculative" / "config.pbtxt").read_text()
    assert "count: 1" in text

    def ask(number: int) -> int:
        with grpc_client(nvidia.server) as client:
            return client.generate(
                CompletionRequest(f"def f{number}(", max_tokens=6, end_id=-1, num_draft_tokens=2)
            ).num_output_tokens

    with nvidia.asked("target") as asked, ThreadPoolExecutor(MAX_BATCH_SIZE) as pool:
        answers = list(pool.map(ask, range(MAX_BATCH_SIZE)))
    assert answers == [6] * MAX_BATCH_SIZE
    owners = [re.match(r"[^/]*", str(entry["id"]))[0] for entry in asked]  # type: ignore[index]
    runs = 1 + sum(one != next_one for one, next_one in pairwise(owners))
    assert runs > MAX_BATCH_SIZE, "one after the other there would be as many runs as requests"


def test_an_empty_proposal_is_no_tensor_and_the_end_may_be_proposed(nvidia: Served) -> None:
    """In TensorRT-LLM issue 2684 a draft that ends immediately proposes nothing. Ours proposes the end."""
    with (
        nvidia.asked("draft") as drafted,
        nvidia.asked("target") as asked,
        grpc_client(nvidia.server) as client,
    ):
        for number in range(12):
            request = CompletionRequest(f"class C{number}:\n", max_tokens=100, num_draft_tokens=4)
            answer = client.generate(request)
            assert answer.output_ids == target_alone(client, request).output_ids
    assert not any("end_id" in entry for entry in drafted)
    assert all(entry["num_draft"] == 0 or "draft_input_ids" in entry for entry in asked if "id" in entry)
    assert any(0 in entry.get("draft_input_ids", ()) for entry in asked), "no draft proposed the end"
