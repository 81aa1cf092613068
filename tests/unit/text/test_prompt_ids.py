"""Tests of prompts as token ids: the engine gets the same tensors as for their text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.manifest import sha256_file
from pipelines.router.preprocessing import Preprocessing
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.wire.tensors import scalar_tensor, text_tensor
from tests.support.trained_tokenizers import byte_level


@pytest.fixture(scope="module")
def preprocessing(tmp_path_factory: pytest.TempPathFactory) -> Preprocessing:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level().save(str(path))
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "100"}
    return ModelParameters("generate", values).preprocessing()


def ids_tensor(*ids: int) -> np.ndarray:
    return np.array([ids], np.int32)


def ask(preprocessing: Preprocessing, **inputs: Any) -> dict[str, Any]:
    return preprocessing({"max_tokens": scalar_tensor(4, np.int32), **inputs})


def test_ids_give_the_engine_what_their_text_gives_it(preprocessing: Preprocessing) -> None:
    words = {"stop_words": text_tensor(b"\n"), "temperature": scalar_tensor(0.5, np.float32)}
    of_text = ask(preprocessing, text_input=text_tensor(b"x = 1"), **words)
    of_ids = ask(preprocessing, input_ids=of_text["input_ids"], **words)
    assert of_text.keys() == of_ids.keys()
    for name, array in of_text.items():
        np.testing.assert_array_equal(array, of_ids[name])
        assert array.dtype == of_ids[name].dtype


TRUE = scalar_tensor(True, np.bool_)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "neither text_input nor input_ids"),
        ({"text_input": text_tensor(b"x"), "input_ids": ids_tensor(5)}, "text_input and input_ids; exactly"),
        ({"input_ids": ids_tensor()}, "the prompt is empty; input_ids gives 0 tokens"),
        ({"input_ids": ids_tensor(5, -1)}, "outside the vocabulary; input_ids has ids from -1 to 5"),
        ({"input_ids": ids_tensor(5, 309)}, "vocabulary; input_ids has ids from 5 to 309; 0 to 308"),
        ({"input_ids": np.array([[5], [6]], np.int32)}, "must hold one request"),
        ({"input_ids": np.array([[5]], np.int64)}, "has the wrong type; int64"),
        ({"input_ids": ids_tensor(5), "add_special_tokens": TRUE}, "add_special_tokens has no meaning"),
        ({"input_ids": ids_tensor(5), "parse_special_tokens": TRUE}, "parse_special_tokens has no meaning"),
    ],
)
def test_what_is_no_prompt_is_refused(
    preprocessing: Preprocessing, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        ask(preprocessing, **inputs)
    assert message in str(refusal.value)
    assert all((refusal.value.what, refusal.value.values, refusal.value.limit, refusal.value.remedy))


def test_too_many_ids_are_refused_as_a_long_text_is(preprocessing: Preprocessing) -> None:
    with pytest.raises(PromptTooLongError, match="input_ids has 100 tokens"):
        ask(preprocessing, input_ids=ids_tensor(*[5] * 100))


def test_many_special_tokens_are_not_too_long_a_text(tmp_path: Path) -> None:
    """A text is refused by its bytes alone if no tokenization can be short enough."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([f"<|{'long' * 50}|>"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "100"}
    text = text_tensor(f"<|{'long' * 50}|>".encode() * 90)
    asked = ask(
        ModelParameters("generate", values).preprocessing(), text_input=text, parse_special_tokens=TRUE
    )
    assert asked["input_ids"].size == 91


@pytest.mark.parametrize("name", ["<s>", "a</s>b"])
def test_a_stop_word_with_a_special_token_stays_refused(preprocessing: Preprocessing, name: str) -> None:
    """It would never match: special tokens are no text."""
    with pytest.raises(InvalidRequestError, match="send its id as end_id"):
        ask(preprocessing, text_input=text_tensor(b"x"), stop_words=text_tensor(name.encode()))


def test_the_parsing_tokenizer_is_loaded_on_a_thread_when_it_is_needed(preprocessing: Preprocessing) -> None:
    texts = (b"<s>x", b"x</s>", b"<s>x")
    plain = {"text_input": text_tensor(b"x")}
    assert preprocessing.is_quick(plain)
    assert not preprocessing.is_quick({**plain, "parse_special_tokens": TRUE})
    asked = [ask(preprocessing, text_input=text_tensor(text), parse_special_tokens=TRUE) for text in texts]
    assert preprocessing.is_quick({**plain, "parse_special_tokens": TRUE})
    assert asked[0]["input_ids"].tolist() == asked[2]["input_ids"].tolist()
    assert asked[1]["input_ids"][0, -1] == byte_level().token_to_id("</s>")
