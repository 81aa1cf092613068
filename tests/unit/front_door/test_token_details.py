"""Tests of what is told of tokens: their log probabilities beside thoughts and calls, and their sources."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.front_door.messages.call_styles.json_calls import HERMES
from pipelines.front_door.messages.message import Content, Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.token_details import TextLogProbs, ThoughtTokens, runs_by_source
from pipelines.text.chunk_boundary import decode_chunk
from pipelines.wire.chunk import TOKEN_SOURCES, Chunk

THOUGHTS, SAID = "<think>\nhm \u00e9 \u2615\n</think>\n\n", "caf\u00e9 \u2615 <tool \U0001f600."
CALL = '\n<tool_call>\n{"name": "f", "arguments": {"a": "\u2615"}}\n</tool_call>'


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


def log_probs_of(pieces: list[bytes], ends: set[int], num_cut: int = 0) -> list[tuple[int, int]]:
    """Return the token of each log probability of the text, and the number of its chunk.

    Args:
        ends: Indices of tokens after which a chunk ends, where a character does too.
        num_cut: Characters at the end that a stop word cuts off.
    """
    model: Any = Model(pieces, {})
    reader, found = MessageReader(Thinking.POSSIBLE, HERMES), TextLogProbs(model)
    told: list[tuple[int, int]] = []
    ids: list[int] = []
    number = 0
    for index in range(len(pieces)):
        ids.append(index)
        is_last = index == len(pieces) - 1
        raw = model.tokenizer.vocabulary.join(ids)
        if not is_last and (index not in ends or not is_whole(raw)):
            continue
        text = raw.decode("utf-8", "replace")
        text = text[: len(text) - num_cut] if is_last else text
        log_probs = tuple(-float(each) for each in ids)
        found.add(Chunk(text, tuple(ids), (False,) * len(ids), "", 0.0, 0, log_probs=log_probs))
        for part in [*reader.read(text), *(reader.end() if is_last else [])]:
            if isinstance(part, Content):
                told += [(round(-each["logprob"]), number) for each in found.take(part)]
        ids, number = [], number + 1
    return [*told, *((round(-each["logprob"]), number) for each in found.rest())]


def is_whole(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def tokens_of(pieces: list[bytes], begin: int, end: int) -> list[int]:
    """Return the tokens that complete a character of a stretch, and those before them without characters."""
    raw, found, empty = b"", [], []
    for index, piece in enumerate(pieces):
        first = len(raw.decode("utf-8", "ignore"))
        raw += piece
        last = len(raw.decode("utf-8", "ignore"))
        empty.append(index)
        if last > first:
            if first < end and last > begin:
                found += empty
            empty = []
    return found


@given(st.data(), st.booleans(), st.booleans())
def test_a_token_of_the_text_is_told_once_and_others_never(
    data: st.DataObject, thinks: bool, calls: bool
) -> None:
    text = THOUGHTS * thinks + SAID + CALL * calls
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1))))
    pieces = [raw[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    begin = len(THOUGHTS) * thinks
    expected = tokens_of(pieces, begin, begin + len(SAID))
    for ends in (set(range(len(pieces))), set(), data.draw(st.sets(st.integers(0, len(pieces))))):
        told = [token for token, _ in log_probs_of(pieces, ends)]
        assert told == expected


def test_a_token_is_told_with_the_first_piece_of_its_text() -> None:
    assert log_probs_of([b"a", b"b ", b"<tool", b"x c"], {0, 1, 2}) == [(0, 0), (1, 1), (2, 3), (3, 3)]


def test_the_token_behind_the_text_is_not_told_though_it_came_with_it() -> None:
    assert log_probs_of([b"a", CALL.encode()], set()) == [(0, 0)]


@pytest.mark.parametrize(
    ("pieces", "num_cut", "expected"),
    [
        ([b"a", b"", b"b", b""], 0, [0, 1, 2, 3]),
        ([b"a", b"b", b"c"], 2, [0, 1, 2]),
        ([b"", b""], 0, []),
        ([b"", THOUGHTS.encode(), b""], 0, []),
        ([b"", THOUGHTS.encode(), b"", b"a", b"\xe2"], 0, [2, 3, 4]),
        ([b"a", CALL.encode(), b""], 0, [0]),
    ],
)
def test_a_token_without_characters_belongs_where_its_neighbour_does(
    pieces: list[bytes], num_cut: int, expected: list[int]
) -> None:
    assert [token for token, _ in log_probs_of(pieces, set(range(9)), num_cut)] == expected


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
