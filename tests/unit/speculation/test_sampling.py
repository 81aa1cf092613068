"""Tests of the choice of tokens."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.lookup.prompt_lookup import MAX_MATCH, PromptLookup
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.draws import draw_token
from pipelines.speculation.sampling.noise import NoiseStream, gumbel, uniform, words_at
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.sampling.sampler import Sampler

LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
SHARED = NoiseStream.SHARED


def sampler(position: int = 1, vocab_size: int = 4, **params: Any) -> Sampler:
    """Return the sampler of a request whose prompt is ``position`` times token 0."""
    request = GenerationRequest("r", np.zeros(position, np.int32), 1, sampling=SamplingParams(**params))
    return Sampler(request, vocab_size)


def test_what_one_vocabulary_allows_is_not_taken_for_valid_with_another() -> None:
    params = SamplingParams(logit_bias=((100, 1.0),))
    params.validate(200)
    with pytest.raises(InvalidRequestError, match="not a token"):
        params.validate(50)


@pytest.mark.parametrize("params", [{}, {"logit_bias": ((3, 9.0),)}, {"temperature": 1.0, "seed": 5}])
def test_a_proposal_chooses_what_a_plain_step_would(params: dict[str, Any]) -> None:
    for logits in np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32):
        token_id, gap = sampler(**params).propose(logits)
        assert token_id == sampler(**params).choose(logits) and gap > 0


def test_noise_depends_on_seed_stream_and_position_alone() -> None:
    words = words_at(5, SHARED, 9, 32)
    assert np.array_equal(words, words_at(5, SHARED, 9, 32))
    assert np.array_equal(words[:8], words_at(5, SHARED, 9, 8))
    for other in ((5, SHARED, 10), (6, SHARED, 9), (5, NoiseStream.DRAFT, 9)):
        assert not np.array_equal(words, words_at(*other, 32))
    low, high = uniform(np.array([0, 2**64 - 1], np.uint64))
    assert 0 < low < high < 1


def test_the_noise_is_that_of_earlier_releases() -> None:
    """A seed's answer must stay the same, so these values may never change."""
    assert [f"{value:.15f}" for value in uniform(words_at(0, SHARED, 0, 3))] == [
        "0.011546754286332",
        "0.241549196562718",
        "0.111425855514938",
    ]


@given(st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(0, 2**32), st.floats(0.01, 100))
def test_noise_is_made_only_where_it_can_win(seed: int, position: int, table: int, scale: float) -> None:
    scores = np.random.default_rng(table).standard_normal(50) * scale
    scores[table % 50] = -np.inf
    everywhere = int(np.argmax(scores + gumbel(words_at(seed, SHARED, position, 50))))
    assert draw_token(scores, seed, SHARED, position) == everywhere


def test_a_draft_token_that_its_logits_rule_out_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot have been drawn"):
        sampler(temperature=1.0, top_k=1).verify(LOGITS, 3, LOGITS)


def test_log_probs_of_a_row_do_not_depend_on_its_neighbours() -> None:
    logits = np.random.default_rng(0).standard_normal((7, 2048)).astype(np.float32) * 5
    token_ids = np.arange(7, dtype=np.int32) * 100
    together = LogProbs.of(logits, token_ids, 3)
    for row in range(7):
        alone = LogProbs.of(logits[row : row + 1].copy(), token_ids[row : row + 1], 3)
        part = together.take(slice(row, row + 1))
        assert part.token_log_probs.tobytes() == alone.token_log_probs.tobytes()
        assert part.top_log_probs.tobytes() == alone.top_log_probs.tobytes()
        assert part.top_ids.tolist() == alone.top_ids.tolist()
    probabilities = np.exp(LogProbs.of(logits, token_ids, 20).top_log_probs)
    assert (np.diff(probabilities, axis=1) <= 0).all() and probabilities.sum(axis=1).max() <= 1 + 1e-6


def lookup(tokens: list[int]) -> PromptLookup:
    return PromptLookup(np.array(tokens, np.int32))


def test_nothing_is_proposed_for_what_never_stood_before() -> None:
    assert lookup([1, 2, 3, 4, 5]).propose(4).tolist() == []
    assert lookup([1, 2]).match_length == 0
    assert lookup([7, 1, 2, 8, 1, 2]).propose(4).tolist() == []  # two equal tokens are not enough for a match


def test_the_latest_continuation_is_proposed() -> None:
    text = lookup([1, 2, 3, 9, 9, 1, 2, 3, 8, 7, 6, 1, 2, 3])
    assert text.match_length == 3
    assert text.propose(3).tolist() == [8, 7, 6]


def test_text_with_a_period_is_continued_with_it() -> None:
    text = lookup([5, 6, 7, 8] * 3)
    assert text.match_length == MAX_MATCH
    assert text.propose(6).tolist() == [5, 6, 7, 8, 5, 6]


def test_a_long_prompt_is_indexed_at_once() -> None:
    """All requests wait meanwhile: they share a thread."""
    text = np.random.default_rng(0).integers(0, 30_000, 100_000).astype(np.int32)
    times = []
    for _ in range(3):
        began_s = time.thread_time()
        LookupDraft(text, prediction_ids=text)
        times.append(time.thread_time() - began_s)
    assert min(times) < 0.1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9))
def test_the_index_finds_what_a_search_finds(tokens: list[int], count: int) -> None:
    text = lookup(tokens[: len(tokens) // 2])
    text.append(np.array(tokens[len(tokens) // 2 :], np.int32))
    starts = (
        [i for i in range(len(tokens) - 3) if tokens[i : i + 3] == tokens[-3:]] if len(tokens) > 3 else []
    )
    if not starts:
        assert text.match_length == 0
        return
    after = starts[-1] + 3
    longest = max(
        n for n in range(3, MAX_MATCH + 1) if n <= after and tokens[after - n : after] == tokens[-n:]
    )
    assert text.match_length == longest
    expected = (tokens[after:] * count)[:count]
    assert text.propose(count).tolist() == expected
