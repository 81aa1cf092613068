"""Calls between models: tensors and errors come back as they were, and nobody waits for who has gone."""

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

from pipelines.errors import EngineFailedError, InternalError, PromptTooLongError, RequestCancelledError
from pipelines.serving import local_calls
from pipelines.serving.call_server import CallServer
from pipelines.serving.local_calls import Call, stream
from pipelines.serving.responder import Outlet, Responder
from pipelines.serving.triton_wire import text_tensor

Serve = Callable[[Callable[[Call, Responder], None]], Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def start(begin: Callable[[Call, Responder], None]) -> Path:
        path = tmp_path / "engine.sock"

        def take(call: Call, outlet: Outlet) -> None:
            begin(call, Responder(outlet, call.request_id))

        servers.append(CallServer(path, take))
        return path

    yield start
    for server in servers:
        server.close()


async def answer_of(path: Path, tensors: Any, request_id: str = "r1") -> list[tuple[Any, bool]]:
    return [response async for response in stream(path, Call(tensors, request_id, 5))]


def ask(path: Path, tensors: Any, request_id: str = "r1") -> list[tuple[Any, bool]]:
    return asyncio.run(asyncio.wait_for(answer_of(path, tensors, request_id), 10))


def test_tensors_of_every_kind_come_back_as_they_were(serve: Serve) -> None:
    tensors: dict[str, Any] = {
        "output_ids": np.arange(6, dtype=np.int32).reshape(1, 1, 6),
        "empty": np.empty((1, 0), dtype=np.bool_),
        "seed": np.array([[2**64 - 1]], dtype=np.uint64),
        "rate": np.array([[0.25]], dtype=np.float32),
        "finish_reason": np.array([["caf\xe9\n".encode()]], dtype=np.object_),
    }

    def echo(call: Call, responder: Responder) -> None:
        assert (call.request_id, call.timeout_us) == ("r1", 5)
        responder.send(call.tensors, is_final=True)

    path = serve(echo)

    async def many() -> list[list[tuple[Any, bool]]]:
        return await asyncio.gather(*(answer_of(path, tensors) for _ in range(20)))

    for ((answer, is_final),) in asyncio.run(many()):
        assert is_final and list(answer) == list(tensors)
        for name, array in tensors.items():
            assert answer[name].dtype == array.dtype
            assert answer[name].shape == array.shape
            assert (answer[name] == array).all()


def test_every_response_has_all_tensors_though_what_has_not_changed_is_not_sent(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = [
        {"output_ids": np.array([ids], dtype=np.int32), "finish_reason": text_tensor(reason)}
        for ids, reason in (([7], ""), ([7], ""), ([7, 8], ""), ([8, 7], "stop"))
    ]

    def answer(call: Call, responder: Responder) -> None:
        for number, outputs in enumerate(responses, start=1):
            responder.send(outputs, is_final=number == len(responses))

    received: list[set[str]] = []
    receive = local_calls.receive

    async def recorded(reader: asyncio.StreamReader) -> Any:
        header, tensors = await receive(reader)
        received.append(set(tensors))
        return header, tensors

    path = serve(answer)
    monkeypatch.setattr(local_calls, "receive", recorded)
    answered = ask(path, {})
    assert [is_final for _, is_final in answered] == [False, False, False, True]
    for (tensors, _), expected in zip(answered, responses, strict=True):
        assert {name: array.tolist() for name, array in tensors.items()} == {
            name: array.tolist() for name, array in expected.items()
        }
    assert received == [
        {"output_ids", "finish_reason"},
        set(),
        {"output_ids"},
        {"output_ids", "finish_reason"},
    ]


def test_errors_keep_their_class_and_defects_their_secrets(serve: Serve) -> None:
    def fail(call: Call, responder: Responder) -> None:
        known = call.request_id == "known"
        responder.fail(PromptTooLongError("too long", limit="8") if known else KeyError("a secret"))

    path = serve(fail)
    with pytest.raises(PromptTooLongError, match="too long; 8"):
        ask(path, {}, "known")
    with pytest.raises(InternalError) as defect:
        ask(path, {}, "unknown")
    assert "secret" not in str(defect.value)


def test_an_error_may_come_in_the_middle(serve: Serve) -> None:
    def begin(call: Call, responder: Responder) -> None:
        responder.send({"output_ids": np.array([[1]])}, is_final=False)
        responder.fail(EngineFailedError("a step failed"))
        responder.send({"output_ids": np.array([[2]])}, is_final=True)

    path = serve(begin)
    received = []

    async def read() -> None:
        async for tensors, _ in stream(path, Call({}, "r1", 0)):
            received.append(tensors["output_ids"].item())

    with pytest.raises(EngineFailedError, match="a step failed"):
        asyncio.run(asyncio.wait_for(read(), 10))
    assert received == [1]


@pytest.mark.parametrize("streams", [True, False])
def test_a_caller_that_leaves_cancels_the_work(serve: Serve, streams: bool) -> None:
    work: Future[None] = Future()
    was_taken = threading.Event()

    def begin(call: Call, responder: Responder) -> None:
        if streams:
            responder.send({"output_ids": np.array([[1]])}, is_final=False)
        responder.follow(work)
        was_taken.set()

    path = serve(begin)

    async def leave() -> None:
        async with aclosing(stream(path, Call({}, "r1", 0))) as responses:
            if streams:
                await anext(responses)
                return
            waiting = asyncio.ensure_future(anext(responses))
            await asyncio.to_thread(was_taken.wait)
            waiting.cancel()
            await asyncio.wait({waiting})

    asyncio.run(leave())
    with pytest.raises(CancelledError):
        work.result(timeout=5)


def test_closing_the_server_answers_what_was_cancelled(serve: Serve, tmp_path: Path) -> None:
    work: Future[None] = Future()
    was_taken = threading.Event()

    def begin(call: Call, outlet: Outlet) -> None:
        Responder(outlet, "r1").follow(work)
        was_taken.set()

    path = tmp_path / "other.sock"
    server = CallServer(path, begin)

    async def scenario() -> None:
        asking = asyncio.ensure_future(answer_of(path, {}))
        await asyncio.to_thread(was_taken.wait)
        work.cancel()
        await asyncio.to_thread(server.close)
        with pytest.raises(RequestCancelledError):
            await asking

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_server_that_ends_without_an_answer_is_an_error_at_once(tmp_path: Path) -> None:
    was_taken = threading.Event()
    path = tmp_path / "engine.sock"
    server = CallServer(path, lambda call, outlet: was_taken.set())

    async def scenario() -> None:
        asking = asyncio.ensure_future(answer_of(path, {}))
        await asyncio.to_thread(was_taken.wait)
        await asyncio.to_thread(server.close)
        with pytest.raises(EngineFailedError, match="does not answer"):
            await asking

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_an_engine_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(EngineFailedError, match=r"absent\.sock"):
        ask(tmp_path / "absent.sock", {})


def test_only_this_user_may_call(serve: Serve) -> None:
    path = serve(lambda call, responder: None)
    assert path.stat().st_mode & 0o077 == 0
