"""Tests of calls between models: tensors and errors arrive unchanged, and nobody waits for a closed peer."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    ProcessEndedError,
    RequestCancelledError,
    ServerBusyError,
    TransportError,
    from_wire,
)
from pipelines.wire import calls as local_calls
from pipelines.wire.call_server import CallServer
from pipelines.wire.calls import Call, stream
from pipelines.wire.responder import Outlet, Responder
from pipelines.wire.tensors import MAX_ID_BYTES, text_tensor

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
    both = {"output_ids", "finish_reason"}
    assert received == [set(), both, set(), {"output_ids"}, both], "the first says that the call was taken"


@pytest.mark.parametrize(("follows", "kind"), [(True, RequestCancelledError), (False, ProcessEndedError)])
async def test_a_server_that_ends_leaves_nobody_waiting(
    tmp_path: Path, follows: bool, kind: type[DraftproofError]
) -> None:
    work: Future[None] = Future()
    was_taken = threading.Event()

    def begin(call: Call, outlet: Outlet) -> None:
        if follows:
            Responder(outlet, "r1").follow(work)
        was_taken.set()

    path = tmp_path / "engine.sock"
    server = CallServer(path, begin)
    assert path.stat().st_mode & 0o077 == 0, "only this user may call"
    asking = asyncio.ensure_future(answer_of(path, {}))
    await asyncio.to_thread(was_taken.wait)
    work.cancel()
    await asyncio.to_thread(server.close)
    with pytest.raises(kind) as told:
        await asking
    assert getattr(told.value, "took_request", True), "the request may be the cause"


def test_nobody_else_may_call_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that is set after the socket was bound would leave a window under a usual umask."""
    monkeypatch.setattr(Path, "chmod", lambda *_: None)
    before = os.umask(0)
    try:
        CallServer(tmp_path / "engine.sock", lambda call, outlet: None).close()
    finally:
        os.umask(before)
    assert (tmp_path / "engine.sock").stat().st_mode & 0o077 == 0


def test_an_engine_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProcessEndedError, match=r"absent\.sock") as told:
        ask(tmp_path / "absent.sock", {})
    assert not told.value.took_request


def test_a_full_backlog_is_awaited_and_then_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_calls, "_CONNECT_TIMEOUT_S", 0.1)
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(ServerBusyError, match="backlog"):
            ask(path, {})


def test_a_process_without_file_descriptors_is_busy_and_no_engine_is_blamed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = serve(lambda call, responder: None)

    def exhausted(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        monkeypatch.setattr(local_calls.socket, "socket", exhausted)
        await answer_of(path, {})

    with pytest.raises(ServerBusyError, match="Too many open files"):
        asyncio.run(scenario())


def test_a_call_that_could_not_be_read_is_not_sent(serve: Serve) -> None:
    calls: list[Call] = []
    path = serve(lambda call, responder: calls.append(call))
    with pytest.raises(TransportError, match="a header of"):
        ask(path, {}, "x" * 70_000)
    assert calls == []


@pytest.mark.parametrize(
    "sent",
    [
        *(b"x" * 200_000, b"x" * 200_000 + b"\n" + b"y" * 200_000, b"[" * 60_000 + b"\n"),
        *(b"no json\n", b"[]\n", b"{}\n", b"\xff\n", b'{"tensors": []}\n'),
        b'{"tensors": [], "request_id": "r", "timeout_us": "soon"}\n',
        b'{"tensors": [["a", "<i4", [1], -4]], "request_id": "r", "timeout_us": 0}\n',
        b'{"tensors": [["a", "garbage", [1], 4]], "request_id": "r", "timeout_us": 0}\n1234',
        b'{"tensors": [["a", "<i4", [3], 4]], "request_id": "r", "timeout_us": 0}\n1234',
        b'{"tensors": [["a", "<i4", [1], 5]], "request_id": "r", "timeout_us": 0}\n12345',
    ],
)
def test_what_is_no_call_is_answered_by_an_error_of_its_own(
    serve: Serve, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = serve(lambda call, responder: responder.send(call.tensors, is_final=True))

    async def scenario() -> Any:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        header, _ = await asyncio.wait_for(local_calls.receive(reader), 10)
        await local_calls.closed(writer)
        return from_wire(header["error"])

    assert type(asyncio.run(scenario())) is TransportError
    assert ask(path, {"a": np.array([1])})[0][1]
    assert not caplog.records


@pytest.mark.parametrize("said", [b"x" * 200_000, b"no json\n", b"{}\n", b'{"tensors": []}\n'])
def test_what_is_no_response_is_an_error_of_that_call(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "strange.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_unix_server(answer, path):
            await answer_of(path, {})

    with pytest.raises(TransportError):
        asyncio.run(asyncio.wait_for(scenario(), 10))


def test_the_longest_id_and_the_longest_error_of_a_client_fit(serve: Serve) -> None:
    said = "\U0001f600" * 100_000

    def refuse(call: Call, responder: Responder) -> None:
        responder.fail(InvalidRequestError("garbage", values=said))

    with pytest.raises(InvalidRequestError, match="garbage"):
        ask(serve(refuse), {"input_ids": np.zeros((1, 10), np.int32)}, "\0" * MAX_ID_BYTES)


def test_a_response_that_cannot_be_sent_ends_the_call(serve: Serve) -> None:
    many = {f"tensor {number}": np.array([1]) for number in range(5000)}
    path = serve(lambda call, responder: responder.send(many, is_final=True))
    with pytest.raises(TransportError):
        ask(path, {})


def test_a_caller_that_reads_slowly_gets_every_response_whole_and_in_order(serve: Serve) -> None:
    """The socket fills up, so that a part of a response has to wait."""
    num_responses, num_values = 20, 200_000

    def begin(call: Call, responder: Responder) -> None:
        for number in range(num_responses):
            values = np.arange(number, number + num_values, dtype=np.int32)
            responder.send({"values": values}, is_final=number == num_responses - 1)

    async def scenario() -> list[tuple[int, int]]:
        received = []
        async for outputs, _ in stream(path, Call({}, "r1", 0)):
            if not received:
                await asyncio.sleep(0.2)
            assert len(outputs["values"]) == num_values
            received.append((int(outputs["values"][0]), int(outputs["values"][-1])))
        return received

    path = serve(begin)
    received = asyncio.run(asyncio.wait_for(scenario(), 20))
    assert received == [(number, number + num_values - 1) for number in range(num_responses)]
