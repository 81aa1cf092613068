"""Tests of responders: each answer has one last response, over a socket and from Triton."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InternalError,
    PromptTooLongError,
    RequestCancelledError,
    from_wire,
)
from pipelines.triton.backend.outputs import Tensors
from pipelines.triton.backend.responses import Outbox, TritonOutlet
from pipelines.wire.calls import CallServer, stream
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest
from pipelines.wire.responder import Outlet, Responder
from tests.support.fake_triton import FakeRequest, fake_backend

Begin = Callable[[Responder[Any]], None]


class SocketClient:
    """Asks over a socket; ``ask`` returns the numbers of the responses, and the error that came last."""

    def __init__(self, path: Path) -> None:
        self._server = CallServer(path, self._take)
        self._path = path
        self._begin: Begin = lambda responder: None

    def _take(self, request: EngineRequest, outlet: Outlet[Chunk]) -> None:
        self._begin(Responder(outlet, request.request_id))

    def ask(self, begin: Begin) -> tuple[list[int], DraftproofError | None]:
        self._begin = begin
        received: list[int] = []

        async def read() -> None:
            async for chunk in stream(self._path, EngineRequest((1,), 1)):
                received.append(chunk.sequence_length)

        try:
            asyncio.run(asyncio.wait_for(read(), 60))
        except DraftproofError as error:
            return received, error
        return received, None

    def leave(self, begin: Begin, was_begun: threading.Event) -> None:
        self._begin = begin

        async def give_up() -> None:
            async with aclosing(stream(self._path, EngineRequest((1,), 1))) as responses:
                waiting = asyncio.ensure_future(anext(responses))
                await asyncio.to_thread(was_begun.wait)
                waiting.cancel()
                await asyncio.wait({waiting})

        asyncio.run(give_up())

    def close(self) -> None:
        self._server.close()


class TritonClient:
    """Asks as Triton does."""

    def __init__(self) -> None:
        self._outbox = Outbox()

    def _send(self, begin: Begin) -> FakeRequest:
        request = FakeRequest({}, requested=("n",))
        outlet = TritonOutlet(fake_backend(), request, self._outbox, "r", tensors_of)
        begin(Responder(outlet, "r"))
        return request

    def ask(self, begin: Begin) -> tuple[list[int], DraftproofError | None]:
        responses = [each for each in self._send(begin).sender.wait() if each is not None]
        error = responses[-1].error if responses else None
        numbers = [int(each.tensors["n"].item()) for each in responses if each.error is None]
        return numbers, error and from_wire(error.message())

    def leave(self, begin: Begin, was_begun: threading.Event) -> None:
        self._send(begin).sender.cancelled = True

    def close(self) -> None:
        self._outbox.close(5.0)


Client = SocketClient | TritonClient


@pytest.fixture(params=["socket", "triton"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    made = SocketClient(tmp_path / "socket") if request.param == "socket" else TritonClient()
    yield made
    made.close()


def tensors_of(chunk: Chunk) -> Tensors:
    return {"n": np.array([chunk.sequence_length], np.int32)}


def number(value: int) -> Chunk:
    return Chunk("", (), (), "stop" if value == 2 else "", 0.0, value)


def test_responses_come_in_order_and_what_follows_the_last_is_dropped(client: Client) -> None:
    def begin(responder: Responder[Any]) -> None:
        for value in range(5):
            responder.send(number(value), is_final=value == 2)
        responder.fail(KeyError())

    assert client.ask(begin) == ([0, 1, 2], None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(PromptTooLongError("too long: 8"), PromptTooLongError), (KeyError("a secret"), InternalError)],
)
def test_an_error_is_the_last_response_with_its_class_and_without_a_defects_secrets(
    client: Client, error: Exception, kind: type[DraftproofError]
) -> None:
    def begin(responder: Responder[Any]) -> None:
        responder.send(number(1), is_final=False)
        responder.fail(error)
        responder.send(number(2), is_final=True)

    received, found = client.ask(begin)
    assert received == [1] and type(found) is kind
    assert "secret" not in str(found) and "Traceback" not in str(found)


def failed(error: Exception) -> Future[None]:
    work: Future[None] = Future()
    work.set_exception(error)
    return work


def ended() -> Future[None]:
    work: Future[None] = Future()
    work.set_result(None)
    return work


def cancelled() -> Future[None]:
    work: Future[None] = Future()
    work.cancel()
    work.set_running_or_notify_cancel()
    return work


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        (failed(EngineFailedError("a step failed")), EngineFailedError),
        (failed(ZeroDivisionError("a secret")), InternalError),
        (ended(), InternalError),
        (cancelled(), RequestCancelledError),
    ],
)
def test_however_work_ends_without_a_last_response_its_client_gets_one(
    client: Client, work: Future[None], kind: type[DraftproofError]
) -> None:
    received, found = client.ask(lambda responder: responder.follow(work))
    assert received == [] and type(found) is kind


def test_a_client_that_leaves_cancels_the_work(client: Client) -> None:
    work: Future[None] = Future()
    was_begun = threading.Event()

    def begin(responder: Responder[Any]) -> None:
        responder.follow(work)
        was_begun.set()

    client.leave(begin, was_begun)
    with pytest.raises(CancelledError):
        work.result(timeout=120)
