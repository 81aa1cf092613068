"""Tests of the ensemble's two steps around the loop: NVIDIA's tensors, typed errors, and the key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pipelines.errors import InternalError, InvalidRequestError, from_wire
from pipelines.manifest import sha256_file
from pipelines.triton.backend.outputs import scalar_tensor
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.ensemble_steps import EnsembleSteps
from tests.support.fake_triton import FakeRequest, fake_backend
from tests.support.tiny_engines import write_tokenizer

NO_IDS = np.zeros((1, 1, 0), np.int32)


@pytest.fixture(scope="module")
def parameters(tmp_path_factory: pytest.TempPathFactory) -> ModelParameters:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    values = {
        "tokenizer_file": str(path),
        "tokenizer_sha256": sha256_file(path),
        **{"max_seq_len": "100000", "max_batch_size": "1", "max_queue_size": "2"},
    }
    return ModelParameters("ensemble_steps", values)


@pytest.fixture
def steps(parameters: ModelParameters) -> Iterator[EnsembleSteps]:
    model = EnsembleSteps(parameters, fake_backend())
    yield model
    model.close()


def chunk_of(ids: list[int], text_length: int, parameters: str = "") -> FakeRequest:
    tensors = {
        "TOKENS_BATCH": np.array([[ids]], np.int32),
        "TEXT_LENGTH": scalar_tensor(text_length, np.int32),
    }
    return FakeRequest(tensors, "", parameters, requested=("OUTPUT",))


def test_a_chunk_without_the_key_or_with_a_defect_ends_typed(steps: EnsembleSteps) -> None:
    without_key, broken = (
        chunk_of([1], 1, '{"draftproof_key": "guess"}'),
        FakeRequest({"TOKENS_BATCH": NO_IDS}),
    )
    steps.execute([without_key, broken, fine := chunk_of([], 0)])
    assert isinstance(from_wire(without_key.sender.error.message()), InvalidRequestError)
    assert isinstance(from_wire(broken.sender.error.message()), InternalError)
    assert fine.sender.wait()[-1].tensors["OUTPUT"].item() == b""  # type: ignore[union-attr]
