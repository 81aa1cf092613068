"""Drills with thousands of concurrent clients, and with clients that leave, wait or read slowly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from pipelines.client.generation import join_chunks
from pipelines.client.refusals import refusal
from pipelines.client.tensors import chunk_from_outputs, chunk_of, infer_message
from pipelines.errors import DraftproofError
from pipelines.wire.chunk import Chunk
from tests.attacks.raw_http import head
from tests.drills.asking import CONNECTION, CUT, HUNG, Question, Tally, asking, class_of, outcome_of
from tests.drills.outcome import BUSY, NOTICED_WITHIN_S, Drill, Outcome, is_calm
from tests.drills.place import TIMEOUTS, Place
from tests.drills.watching import Watch, read_metrics
from tests.support.kserve_http import generate_body

_NUM_CHANNELS = 50
_MODELS = ("generate", "router")
_BURST_TIMEOUT_S = 90.0
_DISCONNECTS, _CANCELS, _HALF_OPEN, _SLOW_READERS = 200, 20, 70, 20
_LEAVING_AT_A_TIME = 20
_SLOW_FOR_S = 2.0
_FREE_WITHIN_S = 2.0
_FEW_FILES = 8
_ARM_OUT = "draftproof_router_arm_out"


def _burst(num_requests: int) -> Callable[[Place], Outcome]:
    """Make a drill that sends the given number of requests concurrently, half of them over each protocol."""

    def run(place: Place) -> Outcome:
        place.server()
        seen = Outcome()
        with Watch(place.ports, _MODELS) as watch:
            began_s = time.monotonic()
            asyncio.run(_ask_all(place, num_requests, seen))
            seen.figures["answered_within_s"] = time.monotonic() - began_s
            seen.figures["longest_not_ready_s"] = watch.longest_not_ready_s(began_s)
        if seen.figures["longest_not_ready_s"] > NOTICED_WITHIN_S:
            seen.faults.append("a server that only had much to do said that it is not ready")
        seen.metrics_are_true = is_calm(place)
        out = {
            key[1]: value for key, value in read_metrics(place.ports).items() if key[0] == _ARM_OUT and value
        }
        if out:
            seen.faults.append(f"{out} arms of the router were taken out")
        return seen

    return run


async def _ask_all(place: Place, num_requests: int, seen: Outcome) -> None:
    async with contextlib.AsyncExitStack() as stack:
        target = f"{place.grpc[0]}:{place.grpc[1]}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        stubs = []
        for _ in range(_NUM_CHANNELS):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, options=options))
            stubs.append(service_pb2_grpc.GRPCInferenceServiceStub(channel))

        async def ask(number: int) -> None:
            question = place.questions[number % len(place.questions)]
            model = _MODELS[number // 2 % 2]
            sent_s = time.monotonic()
            if number % 2:
                asked = _over_http(place, question, model)
            else:
                asked = _over_grpc(stubs[number // 2 % _NUM_CHANNELS], question, model)
            try:
                outcome = await asyncio.wait_for(asked, _BURST_TIMEOUT_S)
            except asyncio.TimeoutError:
                outcome = HUNG
            except (OSError, asyncio.IncompleteReadError, grpc.aio.AioRpcError):
                outcome = CONNECTION
            seen.tally.note(sent_s, outcome)

        await asyncio.gather(*map(ask, range(num_requests)))


async def _over_grpc(stub: Any, question: Question, model: str) -> str:
    message = infer_message(question.request, model, TIMEOUTS, streaming=True)
    chunks, errors = [], []
    async for arrival in stub.ModelStreamInfer(iter((message,))):
        if arrival.error_message:
            errors.append(arrival.error_message)
        elif arrival.infer_response.outputs:
            chunks.append(chunk_of(arrival.infer_response, time.monotonic()))
    return _outcome(question, chunks, errors)


async def _over_http(place: Place, question: Question, model: str) -> str:
    reader, writer = await asyncio.open_connection(*place.http, limit=1 << 20)
    try:
        writer.write(_http_request(question, model))
        answer = await reader.read()
    finally:
        writer.close()
    if not answer:
        return CONNECTION
    return _read(question, answer)


def _http_request(question: Question, model: str) -> bytes:
    body = json.dumps(generate_body(question.request, TIMEOUTS, streaming=True)).encode()
    path = f"/v2/models/{model}/generate_stream"
    return head(path, f"Content-Length: {len(body)}", "Connection: close") + body


def _read(question: Question, answer: bytes) -> str:
    """Classify a whole HTTP response; each of our events is a chunk of its own on the wire."""
    documents = [
        json.loads(line[line.index(b"{") :])
        for line in answer.split(b"\n")
        if line.startswith((b"data: {", b'{"error"'))
    ]
    errors = [document["error"] for document in documents if "error" in document]
    chunks = [
        chunk_from_outputs(
            {name: value if isinstance(value, list) else [value] for name, value in document.items()},
            time.monotonic(),
        )
        for document in documents
        if "error" not in document
    ]
    return _outcome(question, chunks, errors)


def _outcome(question: Question, chunks: list[Chunk], errors: list[str]) -> str:
    def answer() -> Any:
        if errors:
            raise refusal(errors[0])
        return join_chunks(chunks, 0.0, streamed=True)

    return outcome_of(answer, question)


def _leave(place: Place) -> Outcome:
    """Run clients with every bad habit while others are answered."""
    server = place.server()
    seen = Outcome()
    is_calm(place)
    free, files = _free_blocks(place), _num_files(server.process.pid)
    with contextlib.ExitStack() as stack, asking(place, ("generate", "router"), 4, seen.tally):
        for number in range(_HALF_OPEN):
            connection = stack.enter_context(socket.create_connection(place.http))
            whole = _http_request(place.questions[0], "generate")
            connection.sendall(whole[: 40 if number % 2 else len(whole) - 20])
        habits = [disconnect] * _DISCONNECTS + [cancel] * _CANCELS
        slow = [
            threading.Thread(target=_read_slowly, args=[place, number, seen.tally])
            for number in range(_SLOW_READERS)
        ]
        for reader in slow:
            reader.start()
        with ThreadPoolExecutor(_LEAVING_AT_A_TIME) as pool:
            list(pool.map(lambda each: habits[each](place, each, seen.tally), range(len(habits))))
        for reader in slow:
            reader.join()
    at_s = time.monotonic()
    while _free_blocks(place) != free and time.monotonic() < at_s + _FREE_WITHIN_S:
        time.sleep(0.02)
    seen.figures["blocks_free_again_s"] = time.monotonic() - at_s
    seen.figures["more_open_files"] = _num_files(server.process.pid) - files
    seen.metrics_are_true = is_calm(place)
    if _free_blocks(place) != free:
        seen.faults.append(f"blocks of the cache are not free: {_free_blocks(place)}, {free} before")
    if seen.figures["more_open_files"] > _FEW_FILES:
        seen.faults.append(f"{seen.figures['more_open_files']} more files are open")
    return seen


def disconnect(place: Place, number: int, tally: Tally) -> None:
    """Disconnect after the first bytes of an answer; every second time with a reset."""
    sent_s = time.monotonic()
    question = place.long_questions[number % len(place.long_questions)]
    with socket.create_connection(place.http, timeout=TIMEOUTS.read_s) as connection:
        connection.sendall(_http_request(question, "generate"))
        try:
            connection.recv(100)
            outcome = CUT
        except TimeoutError:
            outcome = HUNG
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tally.note(sent_s, outcome)


def cancel(place: Place, number: int, tally: Tally) -> None:
    """Cancel a gRPC stream before its end."""
    sent_s = time.monotonic()
    question = place.long_questions[number % len(place.long_questions)]
    try:
        with place.client() as client, client.stream(question.request, "generate") as stream:
            next(stream)
        outcome = CUT
    except DraftproofError as error:
        outcome = class_of(error)
    tally.note(sent_s, outcome)


def _read_slowly(place: Place, number: int, tally: Tally) -> None:
    """Read an answer in small pieces for a while, then the rest of it."""
    sent_s = time.monotonic()
    question = place.questions[number % len(place.questions)]
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.settimeout(TIMEOUTS.read_s)
    received, piece = b"", b"-"
    with connection:
        try:
            connection.connect(place.http)
            connection.sendall(_http_request(question, "generate"))
            while piece:
                is_slow = time.monotonic() < sent_s + _SLOW_FOR_S
                piece = connection.recv(64 if is_slow else 1 << 16)
                received += piece
                if is_slow:
                    time.sleep(0.02)
            outcome = _read(question, received)
        except TimeoutError:
            outcome = HUNG
        except OSError:
            outcome = CONNECTION
    tally.note(sent_s, outcome)


def _free_blocks(place: Place) -> dict[str, float]:
    metrics = read_metrics(place.ports)
    return {model: value for (name, model), value in metrics.items() if name == "draftproof_kv_blocks_free"}


def _num_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


CROWDS = (
    Drill("1,000 concurrent requests", _burst(1000), BUSY),
    Drill("5,000 concurrent requests", _burst(5000), BUSY),
    Drill(
        f"{_DISCONNECTS} disconnects, {_CANCELS} cancels, {_HALF_OPEN} half-open connections, "
        f"{_SLOW_READERS} slow readers",
        _leave,
        BUSY,
    ),
)
