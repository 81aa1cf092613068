"""Tests of the text of a chunk by the source of its tokens."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pipelines.client.generation import TOKEN_SOURCES, Chunk
from pipelines.front_door.token_details import runs_by_source
from pipelines.text.chunk_boundary import decode_chunk

WORDS = {1: b"def ", 2: b"caf\xc3", 3: b"\xa9", 4: b"\xff", 5: "☕".encode(), 6: b"a"}
SPECIAL = {7: b"<|end|>"}


class Vocabulary:
    special = SPECIAL

    def join(self, ids: list[int]) -> bytes:
        return b"".join(WORDS.get(token_id, b"") for token_id in ids)


MODEL: Any = SimpleNamespace(tokenizer=SimpleNamespace(vocabulary=Vocabulary()))


def chunk_of(ids: list[int], sources: list[int], text: str) -> Chunk:
    marks = tuple(source != 0 for source in sources)
    return Chunk(text, tuple(ids), marks, "", 0.0, len(ids), token_sources=tuple(sources))


@given(st.lists(st.tuples(st.sampled_from([*WORDS, *SPECIAL]), st.integers(0, 3))), st.integers(0, 40))
def test_runs_join_to_the_text_of_the_chunk(tokens: list[tuple[int, int]], num_kept: int) -> None:
    ids, sources = [token_id for token_id, _ in tokens], [source for _, source in tokens]
    text = decode_chunk(Vocabulary().join(ids))[:num_kept]  # a stop word cuts its end off
    runs = runs_by_source(MODEL, chunk_of(ids, sources, text))
    assert "".join(run["text"] for run in runs) == text
    assert [run["source"] for run in runs for _ in range(run["num_tokens"])] == [
        TOKEN_SOURCES[n] for n in sources
    ]
    assert all(one["source"] != other["source"] for one, other in pairwise(runs))


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    runs = runs_by_source(MODEL, chunk_of([1, 2, 3], [0, 1, 2], "def café"))
    assert [(run["source"], run["text"]) for run in runs] == [
        ("target", "def "),
        ("draft_model", "caf"),
        ("lookup", "é"),
    ]


def test_a_special_token_is_shown_where_the_text_has_it() -> None:
    assert [run["text"] for run in runs_by_source(MODEL, chunk_of([6, 7], [0, 1], "a<|end|>"))] == [
        "a",
        "<|end|>",
    ]
    assert [run["text"] for run in runs_by_source(MODEL, chunk_of([6, 7], [0, 1], "a"))] == ["a", ""]
