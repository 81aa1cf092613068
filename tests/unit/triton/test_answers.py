"""Tests that a model answers each request from Triton, and refuses before any work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import (
    InternalError,
    InvalidRequestError,
    RepositoryError,
    RequestCancelledError,
    ServerStartError,
    from_wire,
)
from pipelines.speculation.request import GenerationRequest
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.gauges import TokenTimes
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.answering import Answering, GenerationModel
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from tests.support.fake_triton import FakeRequest, engine_tensors, fake_backend
from tests.support.recorded_gauges import RecordedGauges


class ScriptedAnswerer:
    """Answers with what a test gives it, and records how each answer ended."""

    vocabulary = Vocabulary((b"a", b"b"))
    end_ids = (0,)
    grammars = None

    def __init__(self, script: Callable[[], AsyncIterator[Chunk]]) -> None:
        self._script = script
        self.was_closed = threading.Event()

    def check(self, asked: EngineRequest, request: GenerationRequest) -> None:
        if request.max_tokens == 13:
            raise InvalidRequestError("unlucky")

    async def answer(self, asked: EngineRequest, request: GenerationRequest) -> AsyncIterator[Chunk]:
        try:
            async for chunk in self._script():
                yield chunk
        finally:
            self.was_closed.set()


@pytest.fixture
def serve() -> Iterator[Callable[[ScriptedAnswerer], GenerationModel]]:
    models = []

    def start(answerer: ScriptedAnswerer) -> GenerationModel:
        loop = AsyncioThread("requests")
        loop.start()
        parameters = ModelParameters("target", {}, input_names=("input_ids",))
        times = TokenTimes(RecordedGauges())  # type: ignore[arg-type]
        answering = Answering(loop, answerer, times)
        model = GenerationModel(parameters, fake_backend(), {"": answering})
        models.append(model)
        return model

    yield start
    for model in models:
        model.close()


def chunk_of(number: int) -> Chunk:
    return Chunk("", (number,), (False,), "stop" if number == 2 else "", 0.0, 1)


async def three() -> AsyncIterator[Chunk]:
    for number in range(3):
        yield chunk_of(number)


async def for_ever() -> AsyncIterator[Chunk]:
    yield chunk_of(0)
    await asyncio.sleep(3600)


def test_only_the_outputs_that_were_asked_for_are_sent(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3), requested=("output_ids",))
    serve(ScriptedAnswerer(three)).execute([request])
    assert [set(answer.tensors) for answer in request.sender.wait() if answer] == [{"output_ids"}] * 3


@pytest.mark.parametrize(
    "request_made",
    [
        FakeRequest(engine_tensors([1], 13)),
        FakeRequest(engine_tensors([1], 3, temperature=[0.0, 1.0])),
        FakeRequest(engine_tensors([1], 3, num_log_probs=2)),
        FakeRequest(engine_tensors([1], 3, logit_bias_ids=[1], logit_bias_values=[1.0, 2.0])),
        FakeRequest(engine_tensors([1], 3, bad_words_list=[[0], [2]])),
        FakeRequest(engine_tensors([1], 3), parameters='{"inputids": 1}'),
    ],
)
def test_refusals_come_before_any_work(serve: Any, request_made: FakeRequest) -> None:
    answerer = ScriptedAnswerer(three)
    serve(answerer).execute([request_made])
    error = request_made.sender.error
    assert isinstance(from_wire(error.message()), InvalidRequestError)
    assert not answerer.was_closed.is_set()


def test_an_invalid_request_from_triton_is_an_internal_error(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3), parameters="{no json")
    serve(ScriptedAnswerer(three)).execute([request])
    assert type(from_wire(request.sender.error.message())) is InternalError


def test_closing_the_model_answers_what_is_open(serve: Any) -> None:
    model = serve(ScriptedAnswerer(for_ever))
    requests = [FakeRequest(engine_tensors([1], 3)) for _ in range(3)]
    model.execute(requests)
    model.close()
    model.close = lambda: None  # not again by the fixture
    for request in requests:
        assert type(from_wire(request.sender.error.message())) is RequestCancelledError


def test_a_response_that_cannot_be_sent_becomes_an_error_and_ends_the_work(serve: Any) -> None:
    answerer = ScriptedAnswerer(for_ever)
    request = FakeRequest(engine_tensors([1], 3))
    request.sender.broken_sends = 1
    serve(answerer).execute([request])
    assert type(from_wire(request.sender.error.message())) is InternalError
    assert answerer.was_closed.wait(120)


def test_parameters_are_read_strictly() -> None:
    parameters = ModelParameters("target", {"engine_dir": "engines/x", "max_seq_len": "many"})
    assert parameters.path("engine_dir") == Path("engines/x")
    with pytest.raises(RepositoryError, match="has no parameter 'max_batch_size'"):
        parameters.text("max_batch_size")
    with pytest.raises(RepositoryError, match="max_seq_len='many'"):
        parameters.integer("max_seq_len")


def test_a_numpy_with_which_tensors_arrive_empty_is_named(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "__version__", "2.4.0")
    with pytest.raises(ServerStartError, match=r"numpy 2\.4\.0"):
        serve(ScriptedAnswerer(three))
