"""Tests of the ensemble's two steps around the loop: NVIDIA's tensors, typed errors, and the key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipelines.errors import DraftproofError, InternalError, InvalidRequestError, ServerBusyError, from_wire
from pipelines.manifest import sha256_file
from pipelines.router import preprocessing
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.ensemble_steps import PostprocessingModel, PreprocessingModel
from pipelines.wire.tensors import scalar_tensor, text_tensor
from tests.support.fake_triton import FakeRequest, FakeResponse, fake_backend
from tests.support.tiny_engines import write_tokenizer

LONG = b"import os\n" * 1000


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> ModelParameters:
    """Return settings of both models."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    values = {
        "tokenizer_file": str(path),
        "tokenizer_sha256": sha256_file(path),
        **{"max_seq_len": "100000", "max_batch_size": "1", "max_queue_size": "2"},
    }
    return ModelParameters("preprocessing", values, ("QUERY", "REQUEST_OUTPUT_LEN"))


@pytest.fixture
def first(parameters: ModelParameters) -> Iterator[PreprocessingModel]:
    model = PreprocessingModel(parameters, fake_backend())
    yield model
    model.close()


@pytest.fixture
def last(parameters: ModelParameters) -> PostprocessingModel:
    return PostprocessingModel(parameters, fake_backend())


def request_of(text: bytes = b"x") -> FakeRequest:
    tensors = {"QUERY": text_tensor(text), "REQUEST_OUTPUT_LEN": scalar_tensor(4, np.int32)}
    return FakeRequest(tensors, requested=("INPUT_ID",))


def chunk_of(ids: list[int], text_length: int, parameters: str = "") -> FakeRequest:
    tensors = {
        "TOKENS_BATCH": np.array([[ids]], np.int32),
        "TEXT_LENGTH": scalar_tensor(text_length, np.int32),
    }
    return FakeRequest(tensors, "", parameters, requested=("OUTPUT",))


def error_of(response: FakeResponse) -> DraftproofError | None:
    assert response.error is not None, "an answer where an error was expected"
    return from_wire(response.error.message())


def test_long_texts_wait_in_bounds_and_nobody_waits_for_them(
    first: PreprocessingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    tokenize = preprocessing.Preprocessing.__call__

    def slow(self: Any, inputs: Any) -> Any:
        assert self.is_quick(inputs) or may_go_on.wait(120)
        return tokenize(self, inputs)

    monkeypatch.setattr(preprocessing.Preprocessing, "__call__", slow)
    short, long_ones = request_of(), [request_of(LONG) for _ in range(3)]
    first.execute(long_ones[:2])
    first.execute([short, *long_ones[2:]])
    assert short.sender.wait()[-1].error is None  # type: ignore[union-attr]
    first.execute([busy := request_of()])
    assert isinstance(from_wire(busy.sender.error.message()), ServerBusyError)
    may_go_on.set()
    assert all(each.sender.wait()[-1].error is None for each in long_ones)  # type: ignore[union-attr]


def test_the_last_step_asks_for_the_key_and_hides_its_defects(last: PostprocessingModel) -> None:
    without_key, broken, fine = last.execute(
        [chunk_of([1], 1, '{"draftproof_key": "guess"}'), FakeRequest({}), chunk_of([], 0)]
    )
    assert isinstance(error_of(without_key), InvalidRequestError)
    assert isinstance(error_of(broken), InternalError)
    assert fine.tensors["OUTPUT"].item() == b""
