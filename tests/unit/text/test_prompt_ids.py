"""Tests of prompts as token ids: the engine gets the same as for their text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import InvalidRequestError, PromptTooLongError
from pipelines.manifest import sha256_file
from pipelines.router.preprocessing import Preprocessing
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.triton.backend.inputs import completion_request
from pipelines.triton.backend.outputs import scalar_tensor, text_tensor
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.wire.messages import EngineRequest
from pipelines.wire.request import CompletionRequest
from tests.support.trained_tokenizers import byte_level


@pytest.fixture(scope="module")
def preprocessing(tmp_path_factory: pytest.TempPathFactory) -> Preprocessing:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    byte_level().save(str(path))
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "100"}
    return ModelParameters("generate", values).preprocessing()


def ids_tensor(*ids: int) -> np.ndarray:
    return np.array([ids], np.int32)


def ask(preprocessing: Preprocessing, **inputs: Any) -> EngineRequest:
    return preprocessing(completion_request({"max_tokens": scalar_tensor(4, np.int32), **inputs}))


def test_ids_give_the_engine_what_their_text_gives_it(preprocessing: Preprocessing) -> None:
    words = {
        "stop_words": text_tensor(b"\n"),
        "temperature": scalar_tensor(0.5, np.float32),
        "seed": scalar_tensor(1, np.uint64),
    }
    of_text = ask(preprocessing, text_input=text_tensor(b"x = 1"), **words)
    assert of_text.sampling == SamplingParams(temperature=0.5, seed=1) and of_text.stop == (b"\n",)
    assert ask(preprocessing, input_ids=ids_tensor(*of_text.input_ids), **words) == of_text


TRUE = scalar_tensor(True, np.bool_)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "neither text_input nor input_ids"),
        (
            {"text_input": text_tensor(b"x"), "input_ids": ids_tensor(5)},
            "text_input and input_ids, not one prompt",
        ),
        ({"input_ids": ids_tensor()}, "the prompt is empty: input_ids gives 0 tokens"),
        ({"input_ids": ids_tensor(5, -1)}, "outside the vocabulary: input_ids has ids from -1 to 5"),
        ({"input_ids": ids_tensor(5, 309)}, "vocabulary: input_ids has ids from 5 to 309, not 0 to 308"),
        ({"input_ids": np.array([[5], [6]], np.int32)}, "has the shape [2, 1]"),
        (
            {"input_ids": ids_tensor(5), "add_special_tokens": TRUE},
            "add_special_tokens cannot be sent with input_ids",
        ),
        (
            {"input_ids": ids_tensor(5), "parse_special_tokens": TRUE},
            "parse_special_tokens cannot be sent with input_ids",
        ),
    ],
)
def test_what_is_no_prompt_is_refused(
    preprocessing: Preprocessing, inputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        ask(preprocessing, **inputs)
    assert message in str(refusal.value)
    assert refusal.value.remedy


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
    assert len(asked.input_ids) == 91


@pytest.mark.parametrize("name", ["<s>", "a</s>b"])
def test_a_stop_word_with_a_special_token_stays_refused(preprocessing: Preprocessing, name: str) -> None:
    """It would never match: special tokens are no text."""
    with pytest.raises(InvalidRequestError, match="send its id as end_id"):
        ask(preprocessing, text_input=text_tensor(b"x"), stop_words=text_tensor(name.encode()))


def test_the_parsing_tokenizer_is_loaded_on_a_thread_when_it_is_needed(preprocessing: Preprocessing) -> None:
    texts = (b"<s>x", b"x</s>", b"<s>x")
    plain, parsed = CompletionRequest("x"), CompletionRequest("x", parse_special_tokens=True)
    assert preprocessing.is_quick(plain)
    assert not preprocessing.is_quick(parsed)
    asked = [ask(preprocessing, text_input=text_tensor(text), parse_special_tokens=TRUE) for text in texts]
    assert preprocessing.is_quick(parsed)
    assert asked[0].input_ids == asked[2].input_ids
    assert asked[1].input_ids[-1] == byte_level().token_to_id("</s>")
