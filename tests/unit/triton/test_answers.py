"""Tests that each request gets exactly one last response, and that admission is fair and bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import (
    EngineFailedError,
    InternalError,
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    from_wire,
)
from pipelines.text.vocabulary import Vocabulary
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import SentTensors, TritonWire
from pipelines.triton.engine.answering import Answering
from pipelines.triton.engine.model import GenerationModel
from pipelines.triton.engine.token_times import TokenTimes
from pipelines.wire.admission import Admission
from pipelines.wire.engine_request import GenerationCall
from pipelines.wire.tensors import scalar_tensor, text_tensor
from tests.support.fake_triton import FakeRequest, FakeTensor, FakeTritonError, engine_tensors, fake_backend
from tests.support.recorded_gauges import RecordedGauges


class ScriptedAnswerer:
    """Answers with what a test gives it, and records how each answer ended."""

    vocabulary = Vocabulary((b"a", b"b"))
    end_ids = (0,)
    grammars = None

    def __init__(self, script: Callable[[], AsyncIterator[tuple[dict[str, Any], bool]]]) -> None:
        self._script = script
        self.was_closed = threading.Event()

    def check(self, call: GenerationCall) -> None:
        if call.request.max_tokens == 13:
            raise InvalidRequestError("unlucky")

    async def answer(self, call: GenerationCall) -> AsyncIterator[tuple[dict[str, Any], bool]]:
        try:
            async for response in self._script():
                yield response
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
        model = GenerationModel(parameters, TritonWire(fake_backend()), {"": answering})
        models.append(model)
        return model

    yield start
    for model in models:
        model.close()


def response(number: int) -> dict[str, Any]:
    return {
        "output_ids": np.array([[[number]]], dtype=np.int32),
        "sequence_length": np.array([[1]], dtype=np.int32),
    }


async def three() -> AsyncIterator[tuple[dict[str, Any], bool]]:
    for number in range(3):
        yield response(number), number == 2


async def for_ever() -> AsyncIterator[tuple[dict[str, Any], bool]]:
    yield response(0), False
    await asyncio.sleep(3600)


async def broken() -> AsyncIterator[tuple[dict[str, Any], bool]]:
    yield response(0), False
    raise ZeroDivisionError("a secret of the server")


async def failing() -> AsyncIterator[tuple[dict[str, Any], bool]]:
    yield response(0), False
    raise EngineFailedError("an engine step failed")


async def without_an_end() -> AsyncIterator[tuple[dict[str, Any], bool]]:
    yield response(0), False


async def beyond_its_end() -> AsyncIterator[tuple[dict[str, Any], bool]]:
    yield response(0), True
    yield response(1), True


def test_only_the_outputs_that_were_asked_for_are_sent(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3), requested=("output_ids",))
    serve(ScriptedAnswerer(three)).execute([request])
    assert [set(answer.tensors) for answer in request.sender.wait() if answer] == [{"output_ids"}] * 3


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (failing, EngineFailedError),
        (broken, InternalError),
        (without_an_end, InternalError),
    ],
)
def test_a_failure_ends_in_one_error(serve: Any, script: Any, kind: type[Exception]) -> None:
    request = FakeRequest(engine_tensors([1], 3))
    serve(ScriptedAnswerer(script)).execute([request])
    error = request.sender.error
    assert type(from_wire(error.message())) is kind
    assert "secret" not in error.message()
    assert "Traceback" not in error.message()


def test_what_comes_after_the_last_response_is_dropped(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3))
    serve(ScriptedAnswerer(beyond_its_end)).execute([request])
    assert len(request.sender.wait()) == 1


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
    assert error.code() == FakeTritonError.INVALID_ARG
    assert not answerer.was_closed.is_set()


def test_an_invalid_request_from_triton_is_an_internal_error(serve: Any) -> None:
    request = FakeRequest(engine_tensors([1], 3), parameters="{no json")
    serve(ScriptedAnswerer(three)).execute([request])
    assert type(from_wire(request.sender.error.message())) is InternalError


def test_a_client_that_goes_away_cancels_the_work(serve: Any) -> None:
    answerer = ScriptedAnswerer(for_ever)
    request = FakeRequest(engine_tensors([1], 3))
    serve(answerer).execute([request])
    request.sender.cancelled = True
    assert type(from_wire(request.sender.error.message())) is RequestCancelledError
    assert answerer.was_closed.wait(120)


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


def test_a_full_queue_has_the_code_for_try_again() -> None:
    made = TritonWire(fake_backend()).error_response(ServerBusyError("the queue is full"))
    assert made.error.code() == FakeTritonError.UNAVAILABLE


def test_a_tensor_that_has_not_changed_is_sent_again_and_any_other_is_new() -> None:
    made: list[str] = []

    class CountedTensor(FakeTensor):
        def __init__(self, name: str, array: npt.NDArray[Any]) -> None:
            super().__init__(name, array)
            made.append(name)

    backend = fake_backend()
    backend.Tensor = CountedTensor
    wire = TritonWire(backend)
    sent: SentTensors = {}
    responses = [
        {"text": text_tensor(text), "count": scalar_tensor(count, np.int32), "ids": np.array([ids])}
        for text, count, ids in (("off", 0, [7]), ("off", 0, [7, 7]), ("stop", 1, [7, 7]), ("off", 1, [8, 7]))
    ]
    for outputs in responses:
        tensors = wire.response(outputs, sent).tensors
        assert {name: array.tolist() for name, array in tensors.items()} == {
            name: array.tolist() for name, array in outputs.items()
        }
    assert made.count("text") == 3
    assert made.count("count") == 2
    assert made.count("ids") == 3


def test_admission_is_first_come_first_served_and_bounded() -> None:
    async def scenario() -> list[str]:
        admission = Admission(max_running=1, max_waiting=2)
        order: list[str] = []
        release = asyncio.Event()

        async def work(name: str) -> None:
            async with admission.slot():
                order.append(name)
                await release.wait()

        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(0)
        assert (admission.num_running, admission.num_waiting) == (1, 2)
        with pytest.raises(ServerBusyError, match="max_queue_size=2"):
            async with admission.slot():
                pass
        release.set()
        await asyncio.gather(*tasks)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        return order

    assert asyncio.run(scenario()) == ["a", "b", "c"]


def test_leaving_the_queue_frees_its_place() -> None:
    async def scenario() -> None:
        admission = Admission(max_running=1, max_waiting=4)
        async with admission.slot():
            waiting = [asyncio.create_task(_take(admission)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            with pytest.raises(RequestTimeoutError):
                async with admission.slot(deadline_s=time.monotonic() - 1):
                    pass
            await asyncio.sleep(0)
            assert admission.num_waiting == 2
        await asyncio.gather(*waiting[1:])
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    asyncio.run(scenario())


def test_a_place_given_in_the_moment_of_cancellation_goes_on_to_the_next() -> None:
    async def scenario() -> None:
        admission = Admission(max_running=1, max_waiting=3)
        first = admission.slot()
        await first.__aenter__()
        waiting = [asyncio.create_task(_take(admission)) for _ in range(2)]
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        waiting[0].cancel()
        await asyncio.wait_for(waiting[1], 1)
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    asyncio.run(scenario())


async def _take(admission: Admission) -> None:
    async with admission.slot():
        await asyncio.sleep(0)
