"""Tests of lookups in a corpus of the operator."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import InvalidRequestError
from pipelines.speculation.lookup import corpus as corpus_module
from pipelines.speculation.lookup.corpus import MAX_MATCH, Corpus
from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.lookup.prompt_lookup import MIN_MATCH
from pipelines.speculation.token_ids import TokenIds


def ids(*tokens: int) -> TokenIds:
    return np.array(tokens, np.int32)


def places_after(texts: list[list[int]], last: list[int]) -> list[list[int]]:
    """Return what follows some tokens, wherever they stand and something follows."""
    size = len(last)
    return [
        text[at + size :] for text in texts for at in range(len(text) - size) if text[at : at + size] == last
    ]


TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=5)


@given(TEXTS, st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_the_index_finds_the_longest_match_of_a_search(texts: list[list[int]], said: list[int]) -> None:
    corpus = Corpus.of([ids(*text) for text in texts])
    place, length = corpus.find(said)
    lengths = [
        size for size in range(1, MAX_MATCH + 1) if size <= len(said) and places_after(texts, said[-size:])
    ]
    longest = max(lengths, default=0)
    assert length == (longest if longest >= MIN_MATCH else 0)
    found = corpus.continuation(place, 20).tolist()
    assert found in places_after(texts, said[-length:]) if length else not found


def test_what_follows_most_often_is_proposed() -> None:
    after = {10: 4, 11: 5, 12: 4}
    corpus = Corpus.of([ids(first, 1, 2, 3, token) for first, token in after.items() for _ in range(2)])
    assert corpus.continuation(corpus.find([1, 2, 3])[0], 4).tolist() == [4]
    assert corpus.continuation(corpus.find([11, 1, 2, 3])[0], 4).tolist() == [5]


def test_a_draft_ends_with_its_text_and_does_not_begin_before_it() -> None:
    corpus = Corpus.of([ids(1, 2, 3, 4), ids(5, 6, 7)])
    assert LookupDraft(ids(1, 2, 3), corpus).propose(8).token_ids.tolist() == [4]
    assert LookupDraft(ids(3, 4, 5), corpus).propose(8).token_ids.tolist() == []
    assert LookupDraft(ids(5, 6, 7), corpus).rate == 0.0


def test_the_place_that_promises_most_is_taken() -> None:
    long = list(range(20, 40))
    corpus = Corpus.of([ids(*long, 4, 4), ids(8, 1, 2, 3, 9)])
    known = ids(*long[-3:], 7, *long)  # three tokens match in the text itself, and 16 in the corpus
    assert LookupDraft(known).propose(1).token_ids.tolist() == [7]
    assert LookupDraft(known, corpus).propose(2).token_ids.tolist() == [4, 4]
    assert LookupDraft(known, corpus).propose_after(ids(4), 1).token_ids.tolist() == [4]
    text = ids(8, 1, 2, 3, 7, 7, 8, 1, 2, 3)  # equal matches: the text itself
    for draft in (LookupDraft(text, corpus), LookupDraft(text)):
        assert draft.propose(2).token_ids.tolist() == [7, 7]
    assert LookupDraft(text, corpus).rate == LookupDraft(text).rate


def test_it_is_learned_what_the_corpus_is_worth() -> None:
    same = list(range(10, 200))
    corpus = Corpus.of([ids(*same)])
    right, wrong = LookupDraft(ids(*same[:5]), corpus), LookupDraft(ids(*same[:5]), corpus)
    before = right.rate
    right.append(ids(*same[5:12]))
    assert right.rate > LookupDraft(ids(*same[:12]), corpus).rate
    for begin in range(20, 120, 10):
        wrong.append(ids(300 + begin, *same[begin : begin + 5]))
    assert wrong.rate < before / 2


def test_the_end_of_a_text_is_no_error_of_the_draft() -> None:
    short, long = Corpus.of([ids(1, 2, 3, 4)]), Corpus.of([ids(1, 2, 3, 4, 5)])
    ended, wrong = LookupDraft(ids(1, 2, 3), short), LookupDraft(ids(1, 2, 3), long)
    for draft in (ended, wrong):
        draft.append(ids(4, 8, 7, 6, 9))
    again = ids(11, 12, 1, 2, 3)[-3:]
    for draft in (ended, wrong):
        draft.append(again)
    own = LookupDraft(np.concatenate((ids(1, 2, 3, 4, 8, 7, 6, 9), again)))
    assert max(ended.rate, own.rate) == ended.rate
    assert ended._places[1].rate(3) > wrong._places[1].rate(3)


def test_a_file_holds_the_whole_corpus(tmp_path: Path) -> None:
    corpus = Corpus.of([ids(1, 2, 3, 4), ids(), ids(7, 1, 2, 3, 5)])
    corpus.write(tmp_path / "corpus.npy")
    read = Corpus.read(tmp_path / "corpus.npy", vocab_size=8)
    np.testing.assert_array_equal(read.token_ids, corpus.token_ids)
    np.testing.assert_array_equal(read.places, corpus.places)
    assert read.num_tokens == 9


@pytest.mark.parametrize(
    ("stored", "vocab_size"),
    [
        (
            np.array([[-1] * MAX_MATCH + [1, -1], [MAX_MATCH] + [0] * 17], np.int32),
            1,
        ),  # a token that the model does not have
        (
            np.array([[-1] * MAX_MATCH + [1, -1], [18] + [0] * 17], np.int32),
            8,
        ),  # a place outside of the texts
        (np.array([[-1] * MAX_MATCH + [1, -1], [3] + [0] * 17], np.int32), 8),
        (np.array([[1] * 17, [16] + [0] * 16], np.int32), 8),
        (np.zeros((2, 0), np.int32), 8),
        (np.zeros((2, 20), np.int64), 8),
        (np.array([{"a": 1}], dtype=object), 8),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, stored: np.ndarray, vocab_size: int) -> None:  # type: ignore[type-arg]
    path = tmp_path / "corpus.npy"
    np.save(path, stored, allow_pickle=True)
    with pytest.raises(InvalidRequestError, match="draftproof lookup-corpus"):
        Corpus.read(path, vocab_size)


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, np.zeros(3, np.int32))
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04" + bytes(20),
        b"\x93NUMPY\x01\x00v\x00{'descr'" + b" " * 200,
        b"\x93NUMPY\x01\x00v\x00{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1000000000000000), }"
        + b" " * 200,
        archive(),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "corpus.npy"
    path.write_bytes(content)
    with pytest.raises(InvalidRequestError):
        Corpus.read(path, 8)


def test_a_corpus_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "MAX_TOKENS", 10)
    Corpus.of([ids(1, 2, 3, 4)] * 2)
    with pytest.raises(InvalidRequestError, match="too large"):
        Corpus.of([ids(1, 2, 3, 4)] * 3)
