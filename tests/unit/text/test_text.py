"""Tests of tokens as text: how files spell them, and stop words that are found across tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import EngineLoadError
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
