"""Tests of calls to an engine: messages and errors arrive unchanged, and nobody waits for a closed peer."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    ProcessEndedError,
    RequestCancelledError,
    ServerBusyError,
    TransportError,
    from_wire,
)
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.wire import calls as local_calls
from pipelines.wire import messages
from pipelines.wire.calls import CallServer, stream
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.messages import EngineRequest, Reply, decoded, encoded
from pipelines.wire.request import MAX_ID_BYTES
from pipelines.wire.responder import Outlet, Responder

Serve = Callable[[Callable[[EngineRequest, Responder[Chunk]], None]], Path]
REQUEST = EngineRequest((1, 2), 5, request_id="r1", timeout_us=5)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def start(begin: Callable[[EngineRequest, Responder[Chunk]], None]) -> Path:
        path = tmp_path / "engine.sock"

        def take(request: EngineRequest, outlet: Outlet[Chunk]) -> None:
            begin(request, Responder(outlet, request.request_id))

        servers.append(CallServer(path, take))
        return path

    yield start
    for server in servers:
        server.close()


def chunk_of(ids: tuple[int, ...], finish_reason: str = "stop", **others: Any) -> Chunk:
    return Chunk("", ids, (False,) * len(ids), finish_reason, 0.0, len(ids), **others)


async def answer_of(path: Path, request: EngineRequest = REQUEST) -> list[Chunk]:
    return [replace(chunk, received_at_s=0.0) async for chunk in stream(path, request)]


def ask(path: Path, request: EngineRequest = REQUEST) -> list[Chunk]:
    return asyncio.run(asyncio.wait_for(answer_of(path, request), 10))


def sends(*chunks: Chunk) -> Callable[[EngineRequest, Responder[Chunk]], None]:
    def begin(request: EngineRequest, responder: Responder[Chunk]) -> None:
        for chunk in chunks:
            responder.send(chunk, is_final=bool(chunk.finish_reason))

    return begin


FLOATS = st.floats(allow_nan=False)
FULL = EngineRequest(
    input_ids=(1, 2, 3),
    max_tokens=5,
    request_id="caf\xe9\n\0",
    timeout_us=7,
    streaming=False,
    prompt_length=2,
    sampling=SamplingParams(temperature=0.1, min_p=5e-324, logit_bias=((5, -100.0),), seed=2**64 - 1),
    end_id=-1,
    stop_token_ids=(4,),
    stop=(b"\xc3", "caf\xe9".encode(), b"\0"),
    bad_words=(b"\xff",),
    num_log_probs=0,
    return_prompt_log_probs=True,
    guide=("json", ""),
    num_draft_tokens=0,
    use_draft_logits=True,
    prediction_ids=(6, 5),
    session_id="s",
    cache_salt="c",
)


def test_a_request_and_a_chunk_arrive_as_they_were(serve: Serve) -> None:
    received: list[EngineRequest] = []
    counts = SpeculationCounts(1, 2, 1, (1, 0), 1, 1)
    scores = {"log_probs": (-0.1,), "top_log_probs": (((7, -0.1), (8, -5e-324)),), "cum_log_prob": -0.3}
    chunk = chunk_of((7,), counts=counts, seed=2**64 - 1, draft_length="off: caf\xe9", **scores)

    def begin(request: EngineRequest, responder: Responder[Chunk]) -> None:
        received.append(request)
        responder.send(chunk, is_final=True)

    path = serve(begin)

    async def many() -> list[list[Chunk]]:
        return await asyncio.gather(*(answer_of(path, FULL) for _ in range(20)))

    assert asyncio.run(many()) == [[chunk]] * 20
    assert received == [FULL] * 20


@given(
    stop=st.lists(st.binary(min_size=1), max_size=3),
    values=st.lists(FLOATS, max_size=9),
    seed=st.integers(0, 2**64 - 1),
)
def test_words_and_numbers_survive_the_codec_to_the_bit(
    stop: list[bytes], values: list[float], seed: int
) -> None:
    request = EngineRequest((1,), 2, stop=tuple(stop), sampling=SamplingParams(seed=seed))
    assert decoded(EngineRequest, encoded(request)[4:]) == request
    chunk = chunk_of((), log_probs=tuple(values))
    found = decoded(Reply, encoded(Reply(chunk=chunk))[4:]).chunk
    assert found is not None and list(map(repr, found.log_probs)) == list(map(repr, values))


@pytest.mark.parametrize(("follows", "kind"), [(True, RequestCancelledError), (False, ProcessEndedError)])
async def test_a_server_that_ends_leaves_nobody_waiting(
    tmp_path: Path, follows: bool, kind: type[DraftproofError]
) -> None:
    work: Future[None] = Future()
    was_taken = threading.Event()

    def begin(request: EngineRequest, outlet: Outlet[Chunk]) -> None:
        if follows:
            Responder(outlet, "r1").follow(work)
        was_taken.set()

    path = tmp_path / "engine.sock"
    server = CallServer(path, begin)
    assert path.stat().st_mode & 0o077 == 0, "only this user may call"
    asking = asyncio.ensure_future(answer_of(path))
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
        CallServer(tmp_path / "engine.sock", lambda request, outlet: None).close()
    finally:
        os.umask(before)
    assert (tmp_path / "engine.sock").stat().st_mode & 0o077 == 0


def test_an_engine_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProcessEndedError, match=r"absent\.sock") as told:
        ask(tmp_path / "absent.sock")
    assert not told.value.took_request


def test_a_full_backlog_is_awaited_and_then_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_calls, "_CONNECT_TIMEOUT_S", 0.1)
    path = tmp_path / "full.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(ServerBusyError, match="backlog"):
            ask(path)


def test_a_process_without_file_descriptors_is_busy_and_no_engine_is_blamed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = serve(lambda request, responder: None)

    def exhausted(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    async def scenario() -> None:
        monkeypatch.setattr(local_calls.socket, "socket", exhausted)
        await answer_of(path)

    with pytest.raises(ServerBusyError, match="Too many open files"):
        asyncio.run(scenario())


def test_a_request_that_could_not_be_read_is_not_sent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[EngineRequest] = []
    path = serve(lambda request, responder: received.append(request))
    with pytest.raises(TransportError, match="surrogates not allowed"):
        ask(path, replace(REQUEST, request_id="\ud800"))
    monkeypatch.setattr(messages, "MAX_BYTES", 100)
    with pytest.raises(TransportError, match="at most 100 are allowed"):
        ask(path, replace(REQUEST, request_id="x" * 100))
    assert received == []


def framed(document: bytes) -> bytes:
    return struct.pack(">I", len(document)) + document


@pytest.mark.parametrize(
    "sent",
    [
        *(
            b"\xff" * 8,
            framed(b"no json"),
            framed(b"[]"),
            framed(b"{}"),
            framed(b"\xff"),
            framed(b"[" * 60_000),
        ),
        framed(b'{"input_ids": [1], "max_tokens": "many"}'),
        framed(b'{"input_ids": [1.5], "max_tokens": 1}'),
        framed(b'{"input_ids": [1], "max_tokens": 1, "stop": ["?"]}'),
        framed(b'{"input_ids": [1], "max_tokens": 1, "unknown": 1}'),
    ],
)
def test_what_is_no_request_is_answered_by_an_error_of_its_own(
    serve: Serve, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = serve(sends(chunk_of((1,))))

    async def scenario() -> Any:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        reply = await asyncio.wait_for(messages.receive(Reply, reader), 10)
        await local_calls.closed(writer)
        return from_wire(reply.error)

    assert type(asyncio.run(scenario())) is TransportError
    assert ask(path) == [chunk_of((1,))]
    assert not caplog.records


@pytest.mark.parametrize("said", [b"\xff" * 8, framed(b"no json"), framed(b"{}"), framed(b'{"chunk": {}}')])
def test_what_is_no_reply_is_an_error_of_that_call(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "strange.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_unix_server(answer, path):
            await answer_of(path)

    with pytest.raises(TransportError):
        asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize("said", ["\U0001f600" * 100_000, "\ud800"])
def test_the_longest_id_and_any_error_of_a_client_arrive(serve: Serve, said: str) -> None:
    def refuse(request: EngineRequest, responder: Responder[Chunk]) -> None:
        responder.fail(InvalidRequestError(f"garbage: {said}"))

    with pytest.raises(InvalidRequestError, match="garbage"):
        ask(serve(refuse), replace(REQUEST, request_id="\0" * MAX_ID_BYTES))


def test_a_chunk_that_cannot_be_sent_ends_the_call(serve: Serve) -> None:
    with pytest.raises(TransportError):
        ask(serve(sends(chunk_of((1,), seed="none"))))


def test_a_caller_that_reads_slowly_gets_every_chunk_whole_and_in_order(serve: Serve) -> None:
    """The socket fills up, so that a part of a chunk has to wait."""
    num_chunks, num_values = 20, 100_000
    chunks = [
        chunk_of(tuple(range(number, number + num_values)), "stop" if number == num_chunks - 1 else "")
        for number in range(num_chunks)
    ]
    path = serve(sends(*chunks))

    async def scenario() -> list[tuple[int, ...]]:
        received: list[tuple[int, ...]] = []
        async for chunk in stream(path, REQUEST):
            if not received:
                await asyncio.sleep(0.2)
            received.append(chunk.output_ids)
        return received

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == [chunk.output_ids for chunk in chunks]
