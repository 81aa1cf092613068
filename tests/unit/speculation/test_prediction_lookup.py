"""Tests of following a prediction through differences."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.speculation.lookup import prediction_lookup
from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.lookup.prediction_lookup import PredictionLookup
from pipelines.speculation.lookup.prompt_lookup import MAX_MATCH, MIN_MATCH
from pipelines.speculation.loop import Round
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

_NEAR = 4


def ids(tokens: Sequence[int]) -> TokenIds:
    return np.array(tokens, np.int32)


def place_by_search(prediction: list[int], answer: list[int]) -> tuple[int, int]:
    """Return the place and the length of the match after an answer, by comparing all places each time."""
    place = length = followed = apart = 0
    for end in range(1, len(answer) + 1):

        def length_at(place: int, end: int = end) -> int:
            return next(
                n
                for n in range(min(MAX_MATCH, place, end), -1, -1)
                if answer[end - n : end] == prediction[place - n : place]
            )

        apart += 1
        if length >= MIN_MATCH and place + 1 < len(prediction) and prediction[place] == answer[end - 1]:
            place, length = place + 1, min(length + 1, MAX_MATCH)
        else:
            found = [
                (length_at(at), at > followed, -abs(at - followed), at)
                for at in range(1, len(prediction))
                if length_at(at) >= (1 if followed < at <= followed + _NEAR else MIN_MATCH)
            ]
            length, _, _, place = max(found, default=(0, False, 0, 0))
            if not found and apart == 1 and 0 < followed < len(prediction) - 1:
                place, length = followed + 1, 1
        if length >= MIN_MATCH:
            followed, apart = place, 0
    return place, length


@given(
    st.lists(st.integers(0, 2), max_size=50),
    st.lists(st.tuples(st.integers(0, 49), st.integers(0, 6), st.integers(0, 3)), max_size=8),
)
def test_the_place_is_that_of_a_search(prediction: list[int], pieces: list[tuple[int, int, int]]) -> None:
    answer = [token for at, size, other in pieces for token in (*prediction[at : at + size], other)]
    lookup = PredictionLookup(ids(prediction))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prediction_lookup, "NEAR", _NEAR)
        for end in range(len(answer)):
            lookup.append(ids(answer[end : end + 1]))
            place, length = place_by_search(prediction, answer[: end + 1])
            assert lookup.propose(5).tolist() == prediction[place : place + 5] * bool(length)
            assert lookup.match_length == length


TEXT = "def area(radius):\n    square = radius * radius\n    return pi * square\n"


@pytest.mark.parametrize(
    ("old", "new", "most_wrong"),
    [
        ("radius", "length", 1),  # one token for one
        ("radius", "the.inner.length", 6),
        ("area", "", 1),
        ("    return", "    # no comment\n    return", 11),
        ("    square = radius * radius\n", "", 2),
    ],
)
def test_an_edit_costs_a_token_or_two(old: str, new: str, most_wrong: int) -> None:
    """The draft that follows the new tokens is right again after the next token or two."""
    before, after = (re.findall(r"\w+|\W", text) for text in (TEXT * 3, (TEXT * 3).replace(old, new)))
    number = {token: at for at, token in enumerate(dict.fromkeys((*before, *after)))}
    lookup = PredictionLookup(ids([number[token] for token in before]))
    lookup.append(ids([number[after[0]]]))
    num_wrong = 0
    for token in after[1:]:
        num_wrong += lookup.propose(1).tolist() != [number[token]]
        lookup.append(ids([number[token]]))
    assert num_wrong <= (TEXT * 3).count(old) * most_wrong + 2


def test_of_equal_matches_the_next_after_the_last_place_followed_is_taken() -> None:
    """The other one is nearer."""
    lookup = PredictionLookup(ids([7, 8, 9, 1, 2, 3, 4, *range(50, 60), 7, 8, 9, 2]))
    lookup.append(ids([2, 3, 4, 99, 7, 8, 9]))
    assert lookup.propose(1).tolist() == [2]


def test_a_prediction_is_preferred_and_counted() -> None:
    prediction = ids([1, 2, 3, 4, 5, 6, 7, 8])
    draft = LookupDraft(ids([1, 2, 3, 9, 9, 9]), prediction_ids=prediction)
    draft.append(ids([1, 2, 3]))
    found = draft.propose(3)
    assert (found.token_ids.tolist(), found.num_predicted) == ([4, 5, 6], 3)
    assert draft.rate > 0.9
    without = LookupDraft(ids([1, 2, 3, 9, 9, 9]), prediction_ids=NO_TOKENS)
    without.append(ids([1, 2, 3]))
    assert (without.propose(2).token_ids.tolist(), without.propose(2).num_predicted) == ([9, 9], 0)


def test_a_wrong_prediction_is_soon_believed_no_more() -> None:
    draft = LookupDraft(ids([90]), prediction_ids=ids([1, 2, 3] * 20))
    for number in range(12):
        for tokens in ([1, 2, 3], [50 + number]):
            draft.append(ids(tokens))
    draft.append(ids([1, 2, 3]))
    assert draft.propose(1).num_predicted
    assert draft.rate < 0.4


@pytest.mark.parametrize(
    ("num_accepted", "num_predicted", "expected"), [(5, 2, 2), (4, 2, 1), (3, 2, 0), (2, 5, 2)]
)
def test_tokens_of_the_prediction_are_the_last_of_a_draft(
    num_accepted: int, num_predicted: int, expected: int
) -> None:
    found = Round(ids([1] * (num_accepted + 1)), 5, num_accepted, "", num_predicted=num_predicted)
    assert found.num_accepted_predicted == expected
