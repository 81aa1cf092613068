"""Tests of tokens as text: streamed chunks join to the whole, stop words are found across tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import EngineLoadError
from pipelines.text.chunk_boundary import ChunkBoundary, decode_chunk
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import StopWordMatcher, cut_at_stop_word

BYTES = Vocabulary(tuple(bytes([value]) for value in range(256)))


@given(
    text=st.one_of(st.binary(max_size=40), st.text(max_size=20).map(str.encode)),
    cuts=st.lists(st.integers(1, 5), max_size=40),
    stop_words=st.lists(st.binary(min_size=1, max_size=4), max_size=3),
)
def test_chunks_join_to_the_whole_text(text: bytes, cuts: list[int], stop_words: list[bytes]) -> None:
    """The bytes may be invalid UTF-8 and cut anywhere, up to the token that completes a stop word."""
    matcher = StopWordMatcher(stop_words, BYTES)
    length = next((index + 1 for index, byte in enumerate(text) if matcher.push(byte)), len(text))
    text = text[:length]
    boundary = ChunkBoundary(BYTES, stop_words)
    streamed, done = "", 0
    for size in [*cuts, len(text)]:
        part, done = text[done : done + size], min(done + size, len(text))
        released = bytes(boundary.release(part, is_final=done == len(text)))
        streamed += decode_chunk(cut_at_stop_word(released, stop_words))
        if done == len(text):
            break
    assert streamed == decode_chunk(cut_at_stop_word(text, stop_words))


@given(text=st.binary(max_size=30), word=st.binary(min_size=1, max_size=5), split=st.integers(0, 30))
def test_a_stop_word_is_found_at_the_token_that_completes_it(text: bytes, word: bytes, split: int) -> None:
    first = min((end for end in range(len(text) + 1) if text[:end].endswith(word)), default=None)
    continued = min(split, len(text)) if first is None else min(split, first - 1)
    matcher = StopWordMatcher([word], BYTES, text[:continued])
    found = next((index + 1 for index in range(continued, len(text)) if matcher.push(text[index])), None)
    assert found == first


def test_a_prefix_of_a_stop_word_is_held_until_it_is_decided() -> None:
    boundary = ChunkBoundary(BYTES, [b"END"])
    assert bytes(boundary.release(b"xE", is_final=False)) == b"x"
    assert bytes(boundary.release(b"N", is_final=False)) == b""
    assert bytes(boundary.release(b"x", is_final=False)) == b"ENx"


def test_a_character_is_never_cut() -> None:
    boundary = ChunkBoundary(BYTES)
    parts = [bytes(boundary.release([byte], is_final=False)) for byte in "a\u00e9\U0001f600".encode()]
    assert [part for part in parts if part] == [b"a", "\u00e9".encode(), "\U0001f600".encode()]


def test_byte_level_and_sentencepiece_spellings(tmp_path: Path) -> None:
    special = {"id": 3, "content": "<s>", "special": True}
    byte_level = {
        "model": {"vocab": {"a": 0, "\u0120b": 1, "\u00c3": 2, "\u00ad\u00e9": 4, "\u4e2d": 5}},
        "added_tokens": [special],
        "decoder": {"type": "ByteLevel"},
    }
    sentencepiece = {
        "model": {"vocab": {"\u2581b": 0, "<0x0A>": 1, "\u00e9": 2}},
        "added_tokens": [special],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]},
    }
    for document, expected in [
        (byte_level, (b"a", b" b", b"\xc3", b"", "\u00ad\u00e9".encode(), "\u4e2d".encode())),
        (sentencepiece, (b" b", b"\n", b"\xc3\xa9", b"")),
    ]:
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        assert Vocabulary.from_file(path).bytes_of == expected


@pytest.mark.parametrize("content", ["", "{}", '{"model": {}}', "[1]"])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(EngineLoadError, match="tokenizer"):
        Vocabulary.from_file(path)
