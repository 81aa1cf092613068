"""Tests of the step from a text to tokens and words."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import EngineLoadError, InvalidRequestError
from pipelines.manifest import sha256_file
from pipelines.router.engine_answer import prompt_id
from pipelines.router.preprocessing import Preprocessing
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.wire.request import CompletionRequest
from tests.support.tiny_engines import write_tokenizer


@pytest.fixture(scope="module")
def preprocessing(tmp_path_factory: pytest.TempPathFactory) -> Preprocessing:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "64"}
    return ModelParameters("generate", values).preprocessing()


def text_request(text: str, **others: Any) -> CompletionRequest:
    return CompletionRequest(text, max_tokens=4, seed=1, **others)


def test_preprocessing_refuses_another_tokenizer_than_it_was_rendered_for(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "64"}
    write_tokenizer(path, 1024)
    with pytest.raises(EngineLoadError, match=r"tokenizer\.json is missing or was changed"):
        ModelParameters("generate", values).preprocessing()


def test_a_prompt_becomes_tokens_and_words_stay_bytes(preprocessing: Preprocessing) -> None:
    asked = preprocessing(text_request("naïve ☕", stop_words=("return", "☕☕"), bad_words=(" ugly",)))
    assert preprocessing.vocabulary.join(asked.input_ids).decode() == "naïve ☕"
    assert (asked.stop, asked.bad_words) == ((b"return", "☕☕".encode()), (b" ugly",))
    assert preprocessing(text_request("x")).stop == ()


SAMPLING: dict[str, Any] = {
    **{"temperature": 0.5, "top_k": 4, "top_p": 0.25, "min_p": 0.125, "min_tokens": 3},
    **{"repetition_penalty": 1.5, "presence_penalty": -0.5, "frequency_penalty": 2.0},
    "logit_bias": ((5, -100.0), (0, 0.5)),
}
OTHERS: dict[str, Any] = {
    **{"end_id": 11, "stop_token_ids": (3,), "num_log_probs": 7, "return_prompt_log_probs": True},
    **{"guide": ("json", ""), "num_draft_tokens": 0, "use_draft_logits": True, "session_id": "s"},
    "cache_salt": "c",
}


def test_every_field_reaches_the_engine(preprocessing: Preprocessing) -> None:
    asked = preprocessing(text_request("x", **SAMPLING, **OTHERS))
    assert asked.sampling == SamplingParams(**SAMPLING, seed=1)
    assert {name: getattr(asked, name) for name in OTHERS} == OTHERS
    assert asked.max_tokens == 4
    of_the_router = {"arm", "skip_special_tokens", "resume_output_ids", "add_special_tokens"}
    named = {*SAMPLING, *OTHERS, *of_the_router, "max_tokens", "seed", "stop_words", "bad_words"}
    texts = {"prompt", "prompt_ids", "prediction", "parse_special_tokens"}
    assert named | texts == {field.name for field in dataclasses.fields(CompletionRequest)}


def test_numbers_are_those_that_other_clients_can_send(preprocessing: Preprocessing) -> None:
    """Otherwise one request would have two answers: KServe's tensors have single precision."""
    asked = preprocessing(text_request("x", temperature=0.7, logit_bias=((1, 0.1),))).sampling
    assert asked.temperature == np.float32(0.7) != 0.7
    assert asked.logit_bias == ((1, float(np.float32(0.1))),)
    with pytest.raises(InvalidRequestError, match="temperature=inf"):
        preprocessing(text_request("x", temperature=1e300)).sampling.validate(10)


def test_a_request_without_seed_gets_one(preprocessing: Preprocessing) -> None:
    assert len({preprocessing(CompletionRequest("x")).sampling.seed for _ in range(20)}) == 20


def test_a_prediction_becomes_tokens_and_is_no_part_of_the_answer(preprocessing: Preprocessing) -> None:
    plain = preprocessing(text_request("x"))
    asked = preprocessing(text_request("x", prediction="naïve ☕"))
    assert preprocessing.vocabulary.join(asked.prediction_ids).decode() == "naïve ☕"
    assert dataclasses.replace(asked, prediction_ids=()) == plain
    assert prompt_id(asked) == prompt_id(plain)
    for text, values in (("x y " * 64, "prediction has"), ("x" * 10**6, "bytes")):
        with pytest.raises(InvalidRequestError, match=values):
            preprocessing(text_request("x", prediction=text))
