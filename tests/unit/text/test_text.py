"""Tests of tokens as text: how files spell them, and words that are found across tokens at a bounded cost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import EngineLoadError
from pipelines.text.bad_words import BadWords, Completions, WordPrefixes
from pipelines.text.chunk_boundary import ChunkBoundary
from pipelines.text.vocabulary import Vocabulary
from pipelines.text.words import StopWordMatcher

BYTES = Vocabulary(tuple(bytes([value]) for value in range(256)))


@given(text=st.binary(max_size=30), word=st.binary(min_size=1, max_size=5), split=st.integers(0, 30))
def test_a_stop_word_is_found_at_the_token_that_completes_it(text: bytes, word: bytes, split: int) -> None:
    first = min((end for end in range(len(text) + 1) if text[:end].endswith(word)), default=None)
    continued = min(split, len(text)) if first is None else min(split, first - 1)
    matcher = StopWordMatcher([word], BYTES, text[:continued])
    found = next((index + 1 for index in range(continued, len(text)) if matcher.push(text[index])), None)
    assert found == first


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


LETTERS = b"ab\xff"
TEXTS = st.lists(st.sampled_from(LETTERS), max_size=6).map(bytes)
WORDS = st.lists(TEXTS.filter(bool), min_size=1, max_size=4)


@given(words=WORDS, text=st.lists(TEXTS, max_size=6), longest=st.integers(0, 6))
def test_the_state_is_what_the_text_ends_with(words: list[bytes], text: list[bytes], longest: int) -> None:
    prefixes = WordPrefixes(words)
    state, whole = 0, b""
    for part in text:
        state, whole = prefixes.advance(state, part), whole + part
        begun = [
            (word, length)
            for word in words
            for length in range(1, len(word) + 1)
            if whole.endswith(word[:length])
        ]
        assert bool(state) == bool(begun)
        rests = {word[length:] for word, length in begun}
        assert prefixes.rests(state, longest) == {rest for rest in rests if 0 < len(rest) <= longest}


@given(tokens=st.lists(TEXTS, min_size=1, max_size=12), words=WORDS, data=st.data())
def test_exactly_the_tokens_that_complete_a_bad_word_are_banned(
    tokens: list[bytes], words: list[bytes], data: st.DataObject
) -> None:
    vocabulary = Vocabulary(tuple(tokens))
    output = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=8))
    num_known = data.draw(st.integers(0, len(output)))
    bad_words = BadWords(words, Completions(vocabulary), output[:num_known])
    for token_id in output[num_known:]:
        bad_words.push(token_id)
    before = vocabulary.join(output)
    expected = {
        token_id
        for token_id, text in enumerate(tokens)
        if any((before + text).find(word, max(0, len(before) - len(word) + 1)) >= 0 for word in words if text)
    }
    banned = bad_words.banned_ids()
    assert banned.dtype == np.int32 and set(banned.tolist()) == expected


class CountedVocabulary(Vocabulary):
    """A vocabulary that counts the tokens that are spelled."""

    num_spelled = 0

    def join(self, token_ids: Iterable[int]) -> bytes:
        ids = list(token_ids)
        object.__setattr__(self, "num_spelled", self.num_spelled + len(ids))
        return super().join(ids)


def test_text_that_is_held_back_for_long_is_looked_at_once() -> None:
    vocabulary = CountedVocabulary(tuple(bytes([byte]) for byte in range(256)))
    boundary = ChunkBoundary(vocabulary, [b"c" + b"a" * 254 + b"b", *(b"a" * n + b"b" for n in range(1, 32))])
    for byte in b"c" + b"a" * 254:
        assert boundary.release([byte], is_final=False) == []
    assert vocabulary.num_spelled == 255
    assert bytes(boundary.release(b"x", is_final=False)) == b"c" + b"a" * 254 + b"x"


def test_what_words_mean_for_a_vocabulary_is_searched_once_and_few_are_remembered() -> None:
    completions = Completions(Vocabulary(tuple(bytes([byte]) for byte in range(256))))
    words = [b"a" * (256 - each) for each in range(32)]
    first, second = BadWords(words, completions), BadWords(list(words), completions)
    assert first._searched is second._searched
    for byte in b"a" * 300:
        first.push(byte)
    assert first.banned_ids().tolist() == [ord("a")]
    assert first._searched.prefixes.rests(first._state, completions.longest) == {b"a"}
    for each in range(1000):
        completions.of((b"%d" % each,))
    assert completions.of.cache_info().currsize <= 128  # each may name every token of the vocabulary
