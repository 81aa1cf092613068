"""Tests of continuations found in the text itself."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.lookup.prompt_lookup import MAX_MATCH, PromptLookup


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
