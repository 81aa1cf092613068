"""Tests of tokenizers as people publish them: prefix spaces, Unigram, settings of a trainer, doubled BOS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from pipelines.manifest import sha256_file
from pipelines.router.preprocessing import Preprocessing
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.ensemble_steps import word_ids
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import CompletionRequest
from tests.support.trained_tokenizers import TEXTS, TOKENIZERS, byte_level


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


@pytest.fixture
def start(tmp_path: Path) -> Callable[[Tokenizer], Preprocessing]:
    def start(tokenizer: Tokenizer) -> Preprocessing:
        path = tmp_path / "tokenizer.json"
        tokenizer.save(str(path))
        values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "1000"}
        return ModelParameters("generate", values).preprocessing()

    return start


def ask(preprocessing: Preprocessing, text: str, **others: Any) -> EngineRequest:
    return preprocessing(CompletionRequest(text, max_tokens=4, **others))


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary.parse(tokenizer.to_str().encode(), Path("tokenizer.json"))


@pytest.mark.parametrize("word", ["\n", "return", " return", "1, 2", "é"])
def test_words_are_bytes_without_the_prefix_space(
    word: str, tokenizer: Tokenizer, start: Callable[[Tokenizer], Preprocessing]
) -> None:
    preprocessing = start(tokenizer)
    asked = ask(preprocessing, "x", stop_words=(word,), bad_words=(word,))
    assert asked.stop == asked.bad_words == (word.encode(),)
    ids = word_ids(word.encode(), preprocessing)
    assert preprocessing.vocabulary.join(ids) == word.encode()


def test_truncation_and_padding_of_a_trainer_are_ignored(
    tokenizer: Tokenizer, start: Callable[[Tokenizer], Preprocessing]
) -> None:
    text = TEXTS[0]
    plain = ask(start(tokenizer), text).input_ids
    trained = Tokenizer.from_str(tokenizer.to_str())
    trained.enable_truncation(max_length=4)
    assert ask(start(trained), text).input_ids == plain
    padded = Tokenizer.from_str(tokenizer.to_str())
    padded.enable_padding(length=200)
    assert ask(start(padded), text).input_ids == plain


def test_bos_is_there_once(tokenizer: Tokenizer, start: Callable[[Tokenizer], Preprocessing]) -> None:
    """A chat template writes BOS into its text, and the tokenizer adds another."""
    preprocessing = start(tokenizer)
    bos = tokenizer.token_to_id("<s>")
    for text in ("x = 1", "<s>x = 1"):
        ids = ask(preprocessing, text, parse_special_tokens=True).input_ids
        assert ids[0] == bos and bos not in ids[1:]
    without = ask(preprocessing, "x = 1", add_special_tokens=False)
    assert (bos, *without.input_ids) == ask(preprocessing, "x = 1").input_ids


def test_an_added_token_that_is_not_special_is_spelled(start: Callable[[Tokenizer], Preprocessing]) -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    vocabulary = vocabulary_of(tokenizer)
    assert vocabulary.join(tokenizer.encode("<think>", add_special_tokens=False).ids) == b"<think>"
