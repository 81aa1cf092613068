"""Tests of a text model: open requests are counted and limited, and long texts delay nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import (
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    from_wire,
)
from pipelines.manifest import sha256_file
from pipelines.router import preprocessing
from pipelines.triton.backend.header import Header
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.model import TextModel
from pipelines.wire.calls import Call, Tensors
from pipelines.wire.tensors import scalar_tensor, text_tensor
from tests.support.fake_triton import FakeRequest, fake_backend
from tests.support.lost_cancellations import turns_that_lose_a_cancellation
from tests.support.tiny_engines import write_tokenizer

MAX_BATCH_SIZE, MAX_QUEUE_SIZE = 1, 2
MAX_OPEN = 3 * (MAX_BATCH_SIZE + MAX_QUEUE_SIZE)  # as many as three engines accept
INPUT_NAMES = ("text_input", "max_tokens", "stream", "session_id", "stop_words", "logit_bias_ids")
LONG = b"import os\n" * 1000

Start = Callable[..., TextModel]


def outputs_of(call: Call) -> Tensors:
    """Return an answer that repeats the prompt."""
    return {
        "output_ids": call.tensors["input_ids"][np.newaxis],
        "text_length": scalar_tensor(10**6, np.int32),
        "output_log_probs": np.empty((1, 1, 0), np.float32),
        "sequence_length": scalar_tensor(call.tensors["input_ids"].size, np.int32),
        "finish_reason": text_tensor("stop"),
    }


class Answerer:
    """Answers immediately, or when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, call: Call) -> AsyncIterator[tuple[Tensors, bool]]:
        self.calls.append(call)
        await self.may_answer.wait()
        yield outputs_of(call), True


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(path)
    return path


@pytest.fixture
def start(tokenizer: Path) -> Iterator[Start]:
    models = []

    def make(answerer: Answerer) -> TextModel:
        values = {
            "tokenizer_file": str(tokenizer),
            "tokenizer_sha256": sha256_file(tokenizer),
            "max_seq_len": "100000",
            "max_batch_size": str(MAX_BATCH_SIZE),
            "max_queue_size": str(MAX_QUEUE_SIZE),
        }
        parameters = ModelParameters("generate", values, INPUT_NAMES)
        models.append(TextModel(parameters, fake_backend(), answerer))  # type: ignore[arg-type]
        return models[-1]

    yield make
    for model in models:
        model.close()


def request_of(text: bytes = b"x", request_id: str = "", **others: Any) -> FakeRequest:
    parameters = others.pop("parameters", "")
    tensors = {
        "text_input": text_tensor(text),
        "max_tokens": scalar_tensor(4, np.int32),
        **others,
    }
    return FakeRequest(tensors, request_id, parameters, requested=("text_output",))


def text_of(request: FakeRequest) -> bytes:
    response = request.sender.wait()[-1]
    assert response is not None and response.error is None, response and response.error
    return bytes(response.tensors["text_output"].item())


def error_of(request: FakeRequest) -> Any:
    return from_wire(request.sender.error.message())


@pytest.mark.parametrize("text", [b"import os", LONG])
def test_short_and_long_texts_are_answered_alike(start: Start, text: bytes) -> None:
    answerer = Answerer()
    request = request_of(text, "mine", parameters='{"timeout": 50000000}')
    start(answerer).execute([request])
    assert text_of(request) == text
    (call,) = answerer.calls
    assert call.request_id == "mine" and 0 < call.timeout_us <= 50_000_000


def test_nobody_waits_while_long_texts_are_tokenized(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, threads = threading.Event(), set()
    tokenize = preprocessing.Preprocessing.__call__

    def slow(self: Any, inputs: Any) -> Any:
        threads.add((self.is_quick(inputs), threading.current_thread().name.partition("_")[0]))
        if not self.is_quick(inputs):
            assert may_go_on.wait(120)
        return tokenize(self, inputs)

    monkeypatch.setattr(preprocessing.Preprocessing, "__call__", slow)
    model = start(Answerer())
    long_ones = [request_of(LONG) for _ in range(4)]
    model.execute(long_ones)
    short_ones = [request_of(b"import os") for _ in range(4)]
    model.execute(short_ones)
    assert [text_of(request) for request in short_ones] == [b"import os"] * 4
    assert not any(request.sender.sent for request in long_ones)
    may_go_on.set()
    assert [text_of(request) for request in long_ones] == [LONG] * 4
    assert threads == {(True, "MainThread"), (False, "tokenize")}


def test_a_deadline_passes_while_a_text_waits_to_be_tokenized(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    monkeypatch.setattr(preprocessing.Preprocessing, "__call__", lambda *_: may_go_on.wait(120) and {})
    request = request_of(LONG, parameters='{"timeout": 1000}')
    start(Answerer()).execute([request])
    error = error_of(request)
    may_go_on.set()
    assert type(error) is RequestTimeoutError and str(error).count("; ") == 3


def test_a_long_text_that_is_refused_is_refused_from_the_pool_too(start: Start) -> None:
    request = request_of(LONG + b"\xff")
    start(Answerer()).execute([request])
    assert type(error_of(request)) is InvalidRequestError


def test_a_burst_is_answered_or_busy_and_the_places_come_back(start: Start) -> None:
    answerer = Answerer()
    answerer.may_answer.clear()
    model = start(answerer)
    burst = [request_of(LONG if number % 7 == 0 else b"x") for number in range(500)]
    model.execute(burst)
    for busy in burst[MAX_OPEN:]:
        error = error_of(busy)
        assert type(error) is ServerBusyError and str(error).count("; ") == 3
    model._loop.spawn(set_event(answerer.may_answer)).result()
    assert [text_of(request) in (LONG, b"x") for request in burst[:MAX_OPEN]] == [True] * MAX_OPEN
    assert model._open._num_open == 0
    again = [request_of() for _ in range(MAX_OPEN)]
    model.execute(again)
    assert [text_of(request) for request in again] == [b"x"] * MAX_OPEN


async def set_event(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.parametrize("text", [b"x", LONG])
def test_places_of_clients_that_leave_are_freed(start: Start, text: bytes) -> None:
    answerer = Answerer()
    answerer.may_answer.clear()
    model = start(answerer)
    gone = [request_of(text) for _ in range(MAX_OPEN)]
    model.execute(gone)
    for request in gone:
        request.sender.cancelled = True
    assert {type(error_of(request)) for request in gone} == {RequestCancelledError}
    assert model._open._num_open == 0


class Tokenizing(Executor):
    """A thread pool whose work is done when a future is.

    Args:
        until: The future; its result is that of the work.
    """

    def __init__(self, until: asyncio.Future[Tensors]) -> None:
        self._until = until

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        work: Future[Any] = Future()
        self._until.add_done_callback(lambda done: work.set_result(done.result()))
        return work


def test_a_client_that_leaves_when_its_text_is_tokenized_is_not_answered(start: Start) -> None:
    answerer = Answerer()
    answerer.may_answer.clear()
    model = start(answerer)
    tokenize = model._tokenizing
    responder: Any = None
    outputs: Any = None

    def begin(tokens: asyncio.Future[Tensors]) -> Coroutine[Any, Any, None]:
        model._tokenizing = Tokenizing(tokens)  # type: ignore[assignment]
        return model._tokenize_and_answer({}, Header("", 60_000_000), True, responder, outputs)

    assert turns_that_lose_a_cancellation(begin, {}) == []
    model._tokenizing = tokenize


def test_refusals_take_no_place(start: Start) -> None:
    model = start(Answerer())
    for _ in range(3 * MAX_OPEN):
        request = request_of(session_id=text_tensor(b"s" * 300))
        model.execute([request])
        assert "the session_id is too long" in str(error_of(request))
    assert model._open._num_open == 0


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"text_input": np.empty((1, 0), np.object_)}, "text_input must be one value"),
        ({"text_input": text_tensor(b"x" * 10**7)}, "text_input has 10000000 bytes"),
        ({"max_tokens": np.empty((1, 0), np.int32)}, "max_tokens must be one value"),
        ({"session_id": np.empty((1, 0), np.object_)}, "session_id must be one value"),
        ({"session_id": text_tensor(b"\xff")}, "session_id is not valid UTF-8"),
        ({"arm": text_tensor(b"a" * 10**6)}, "the arm is too long; 1000000 bytes"),
        ({"seed": np.empty((1, 0), np.uint64)}, "seed must be one value"),
        ({"temperature": np.zeros((1, 2), np.float32)}, "temperature must be one value"),
        ({"stop_words": np.array([[b"x"] * 10**5], np.object_)}, "100000 stop words; at most 32"),
        ({"logit_bias_ids": np.zeros((1, 2000), np.int32)}, "2000 ids, 0 values"),
        (
            {
                "logit_bias_ids": np.zeros((1, 5000), np.int32),
                "logit_bias_values": np.zeros((1, 5000), np.float32),
            },
            "5000 ids; at most 1024",
        ),
    ],
)
def test_what_is_out_of_bounds_is_refused_without_a_call(
    start: Start, tensors: dict[str, Any], words: str
) -> None:
    answerer = Answerer()
    request = request_of(**tensors)
    start(answerer).execute([request])
    assert words in str(error_of(request)) and len(str(error_of(request))) < 1000
    assert isinstance(error_of(request), InvalidRequestError) and answerer.calls == []


@pytest.mark.parametrize("request_id", [b"\xff", "x" * 70_000])
def test_an_id_that_is_none_gets_an_answer_and_reaches_no_engine(start: Start, request_id: Any) -> None:
    answerer = Answerer()
    request = request_of(request_id=request_id)
    start(answerer).execute([request])
    assert isinstance(error_of(request), InvalidRequestError)
    assert request.sender.error.code() == fake_backend().TritonError.INVALID_ARG
    assert answerer.calls == []
