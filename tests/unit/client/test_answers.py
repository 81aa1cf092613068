"""Tests of answers made from responses, their figures and errors, and many concurrent requests; no server."""

from __future__ import annotations

import pytest

from pipelines.client.generation import Generation, join_chunks
from pipelines.client.refusals import refusal
from pipelines.client.tensors import chunk_from_outputs
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InternalError,
    InvalidRequestError,
    ServerUnavailableError,
)
from pipelines.wire.chunk import Chunk, SpeculationCounts
from tests.support.stand_in_scripts import FIRST_ROUND


def test_figures_follow_their_formulas() -> None:
    generation = Generation("", (1, 2, 3, 4, 5), (), "length", 4, 12, 3, (2, 1, 0), 2.0, 4.0)
    assert generation.itl_s == 0.5  # 2 s for the 4 tokens after the first
    assert generation.acceptance_rate == 0.25
    assert generation.mean_acceptance_length == 1.75
    assert Generation("", (1,), (), "length", 0, 0, 0, (), 2.0, 4.0).itl_s is None


def chunk(ids: tuple[int, ...], so_far: int, finish: str = "", at: float = 0.0) -> Chunk:
    return Chunk("", ids, (), finish, at, so_far)


def test_what_each_round_drafted_comes_with_the_last_chunk() -> None:
    counts = SpeculationCounts(3, 7, 0, ())
    chunks = [
        Chunk("", (7, 8), (False,) * 2, "", 0.0, 2, None),
        Chunk("", (9,), (False,), "length", 0.0, 3, counts, drafted_per_round=(0, 4, 3)),
    ]
    assert join_chunks(chunks, 0.0, streamed=True).drafted_per_round == (0, 4, 3)


def test_time_to_first_token_waits_for_a_token_not_for_a_chunk() -> None:
    chunks = [chunk((), 0, at=11.0), chunk((4,), 1, at=12.0), chunk((5, 6), 3, "stop", at=15.0)]
    generation = join_chunks(chunks, 10.0, streamed=True)
    assert (generation.ttft_s, generation.e2e_latency_s, generation.itl_s) == (2.0, 5.0, 1.5)


def test_a_lost_chunk_is_noticed() -> None:
    with pytest.raises(InternalError, match="sequence_length=3, 2 tokens"):
        join_chunks([chunk((4, 5), 3, "stop")], 0.0, streamed=True)
    with pytest.raises(InternalError, match="no finish_reason"):
        join_chunks([chunk((4,), 1)], 0.0, streamed=True)
    with pytest.raises(InternalError, match="no finish_reason"):
        join_chunks([], 0.0, streamed=True)


def test_a_response_that_contradicts_itself_is_noticed() -> None:
    outputs = {"text_output": ["a"], "output_ids": [1, 2], "sequence_length": [2], "finish_reason": [""]}
    assert chunk_from_outputs(outputs, 0.0).counts is None
    counts = {name: value if isinstance(value, list) else [value] for name, value in FIRST_ROUND.items()}
    with pytest.raises(InternalError, match="3 of accepted_mask for 2 tokens"):
        chunk_from_outputs({**outputs, **counts}, 0.0)
    with pytest.raises(InternalError, match="finish_reason"):
        chunk_from_outputs({name: outputs[name] for name in outputs if name != "finish_reason"}, 0.0)
    with pytest.raises(InternalError, match="1 of log_probs for 2 tokens"):
        chunk_from_outputs({**outputs, "output_log_probs": [-1.0]}, 0.0)
    for ids, values in (([1, 2, 3], [0.0] * 3), ([1, 2], [0.0])):
        with pytest.raises(InternalError, match="of alternatives, 2 tokens"):
            chunk_from_outputs({**outputs, "top_log_prob_ids": ids, "top_log_probs": values}, 0.0)
    full = chunk_from_outputs({**outputs, **counts, "accepted_mask": [True, False]}, 0.0)
    assert full.counts == SpeculationCounts(1, 4, 2, (1, 1, 0, 0))


def test_messages_without_a_class_are_sorted_by_triton_words() -> None:
    assert isinstance(refusal("unexpected inference input 'x' for model 'generate'"), InvalidRequestError)
    assert isinstance(refusal("Request for unknown model: 'x' is not found"), InvalidRequestError)
    assert isinstance(refusal("model 'generate' is not ready"), ServerUnavailableError)
    assert isinstance(refusal("Stub process is not healthy"), EngineFailedError)
    assert isinstance(refusal("whatever", is_client_fault=True), InvalidRequestError)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("expected 3 inputs but got 2 inputs for model 'm'", InvalidRequestError),
        ("Got input(s) ['a'], but missing required input(s) ['b']", InvalidRequestError),
        ("[request id: 7] unexpected shape for input 'a'. Expected [1], got [2]", InvalidRequestError),
        ("input 'a' has datatype INT64, expected datatype 'INT32'", InvalidRequestError),
        ("invalid 'timeout' parameter, expected int64_param.", InvalidRequestError),
        ("failed to parse the request JSON buffer: Missing a name for object member.", InvalidRequestError),
        ("unexpected error in CUDA stream", EngineFailedError),
        ("the stub ended: missing symbol cudaMalloc", EngineFailedError),
        ("key 'x' is not found in global map", EngineFailedError),
        ("An ALPN message was expected but not received", EngineFailedError),
    ],
)
def test_a_failure_of_the_server_is_no_invalid_request(message: str, kind: type[DraftproofError]) -> None:
    assert type(refusal(message)) is kind
