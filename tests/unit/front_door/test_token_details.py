"""Tests of what is told of tokens: their sources, and how many are thoughts."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.token_details import ThoughtTokens, runs_by_source
from pipelines.text.chunk_boundary import decode_chunk
from pipelines.wire.chunk import TOKEN_SOURCES, Chunk


class Model:
    """A model whose tokens are given pieces of bytes.

    Args:
        pieces: The pieces; the id of a token is the index of its piece.
        special: Names of special tokens, which have no bytes.
    """

    def __init__(self, pieces: list[bytes], special: dict[int, bytes]) -> None:
        self.pieces = pieces
        vocabulary = SimpleNamespace(join=lambda ids: b"".join(map(self.bytes_of, ids)), special=special)
        self.tokenizer = SimpleNamespace(vocabulary=vocabulary)

    def style(self, *, with_tools: bool) -> MessageStyle:
        return MessageStyle()

    def bytes_of(self, token_id: int) -> bytes:
        return self.pieces[token_id]


WORDS = [b"def ", b"caf\xc3", b"\xa9", b"\xff", "\u2615".encode(), b"a", b""]
SOURCES: Any = Model(WORDS, {6: b"<|end|>"})


def runs_of(ids: list[int], sources: list[int], text: str) -> list[tuple[str, str, int]]:
    marks = tuple(source != 0 for source in sources)
    chunk = Chunk(text, tuple(ids), marks, "", 0.0, len(ids), token_sources=tuple(sources))
    return [(run["source"], run["text"], run["num_tokens"]) for run in runs_by_source(SOURCES, chunk)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3))), st.integers(0, 40))
def test_runs_join_to_the_text_of_the_chunk(tokens: list[tuple[int, int]], num_kept: int) -> None:
    ids, sources = [token_id for token_id, _ in tokens], [source for _, source in tokens]
    text = decode_chunk(b"".join(WORDS[each] for each in ids))[:num_kept]  # a stop word cuts its end off
    runs = runs_of(ids, sources, text)
    assert "".join(said for _, said, _ in runs) == text
    assert [source for source, _, number in runs for _ in range(number)] == [
        TOKEN_SOURCES[n] for n in sources
    ]
    assert all(one != other for (one, *_), (other, *_) in pairwise(runs))


@pytest.mark.parametrize(
    ("ids", "text", "expected"),
    [
        ([0, 1, 2], "def caf\u00e9", ["def ", "caf", "\u00e9"]),  # it belongs to the token that completes it
        ([5, 6], "a<|end|>", ["a", "<|end|>"]),
        ([5, 6], "a", ["a", ""]),
    ],
)
def test_a_run_has_the_text_that_its_tokens_complete(ids: list[int], text: str, expected: list[str]) -> None:
    assert [said for _, said, _ in runs_of(ids, list(range(len(ids))), text)] == expected


@pytest.mark.parametrize(
    ("written", "number"),
    [("so</think>\n\nyes", 10), ("</think>x", 8), ("never ending", 12), ("</thin</think>k>", 14)],
)
@pytest.mark.parametrize("size", [1, 3])
def test_the_tokens_of_thoughts_are_counted_up_to_their_end(written: str, number: int, size: int) -> None:
    """A token holds one character, and a chunk ``size`` tokens."""
    model: Any = Model([bytes([byte]) for byte in range(128)], {})
    thoughts, ids = ThoughtTokens(model), [*written.encode()]
    for begin in range(0, len(ids), size):
        thoughts.add(ids[begin : begin + size])
    assert thoughts.number == number
