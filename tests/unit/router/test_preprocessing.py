"""Tests of the step from a text to tokens and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import EngineLoadError, InvalidRequestError
from pipelines.manifest import sha256_file
from pipelines.router.preprocessing import Preprocessing
from pipelines.router.received_answer import prompt_id
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.wire.tensors import scalar_tensor, text_tensor
from pipelines.wire.word_list import WordKind, unpack_words
from tests.support.tiny_engines import write_tokenizer


@pytest.fixture(scope="module")
def preprocessing(tmp_path_factory: pytest.TempPathFactory) -> Preprocessing:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "64"}
    return ModelParameters("generate", values).preprocessing()


def text_inputs(text: bytes, **words: list[bytes]) -> dict[str, Any]:
    inputs = {"text_input": text_tensor(text), "max_tokens": scalar_tensor(4, np.int32)}
    return {**inputs, **{name: np.array([each], np.object_) for name, each in words.items()}}


def test_preprocessing_refuses_another_tokenizer_than_it_was_rendered_for(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    values = {"tokenizer_file": str(path), "tokenizer_sha256": sha256_file(path), "max_seq_len": "64"}
    write_tokenizer(path, 1024)
    with pytest.raises(EngineLoadError, match=r"tokenizer\.json is missing or was changed"):
        ModelParameters("generate", values).preprocessing()


def test_preprocessing_spells_prompt_and_stop_words(preprocessing: Preprocessing) -> None:
    outputs = preprocessing(
        text_inputs("naïve ☕".encode(), stop_words=[b"return", "☕☕".encode()], bad_words=[b" ugly"])
    )
    vocabulary = preprocessing.vocabulary
    assert vocabulary.join(outputs["input_ids"].ravel().tolist()).decode() == "naïve ☕"
    assert outputs["input_lengths"].tolist() == [[outputs["input_ids"].size]]
    words = unpack_words(outputs["stop_words_list"][0], vocabulary, WordKind.STOP)
    assert words == (b"return", "☕☕".encode())
    assert unpack_words(outputs["bad_words_list"][0], vocabulary, WordKind.BAD) == (b" ugly",)
    for name in ("stop_words_list", "bad_words_list"):
        assert preprocessing(text_inputs(b"x"))[name].tolist() == [[[-1], [-1]]]


def test_a_prediction_becomes_tokens_and_is_no_part_of_the_answer(preprocessing: Preprocessing) -> None:
    plain = preprocessing(text_inputs(b"x"))
    asked = preprocessing({**text_inputs(b"x"), "prediction": text_tensor("naïve ☕")})
    ids = asked.pop("prediction_ids")
    assert preprocessing.vocabulary.join(ids.ravel().tolist()).decode() == "naïve ☕" and len(ids) == 1
    assert asked.keys() == plain.keys()
    assert prompt_id({**asked, "prediction_ids": ids}) == prompt_id(plain)
    for text, values in (
        (b"\xff", "not valid UTF-8"),
        (b"x y " * 64, "prediction has"),
        (b"x" * 10**6, "bytes"),
    ):
        with pytest.raises(InvalidRequestError, match=values):
            preprocessing({**text_inputs(b"x"), "prediction": text_tensor(text)})


def test_a_prompt_is_not_cut_or_padded_by_what_a_trainer_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path)
    document = json.loads(path.read_text(encoding="utf-8"))
    right = {"direction": "Right"}
    document["truncation"] = {"max_length": 4, "stride": 0, "strategy": "LongestFirst", **right}
    padding = {"strategy": {"Fixed": 48}, "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
    document["padding"] = {**padding, "pad_token": "x", **right}
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(document), encoding="utf-8")
    ids = []
    for each in (path, cut):
        values = {"tokenizer_file": str(each), "tokenizer_sha256": sha256_file(each), "max_seq_len": "64"}
        made = ModelParameters("generate", values).preprocessing()
        ids.append(made(text_inputs(b"def main():\n    return 12"))["input_ids"].tolist())
    assert ids[0] == ids[1]
    assert 4 < len(ids[0][0]) < 48
