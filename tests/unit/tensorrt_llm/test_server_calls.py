"""Tests of calls to other models of the server, and of how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RequestRefusedError,
    RequestTimeoutError,
    ServerBusyError,
)
from pipelines.triton.tensorrt_llm.server_calls import ADDRESS_VARIABLE, ServerCalls, model_error

PROMPT = {"input_ids": np.array([[1, 2]], np.int32)}


class WaitingServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server that gives one response, or refuses, and then waits until the call is cancelled."""

    def __init__(self, error: str = "") -> None:
        self.cancelled = asyncio.Event()
        self._error = error

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            answer = service_pb2.ModelStreamInferResponse(error_message=self._error)
            if not self._error:
                answer.infer_response.outputs.add(name="output_ids", datatype="INT32", shape=[1])
                answer.infer_response.raw_output_contents.append(np.int32(7).tobytes())
            yield answer
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def calls_to(served: WaitingServer) -> AsyncIterator[ServerCalls]:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(served, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    calls = ServerCalls(f"127.0.0.1:{port}")
    # An unreferenced call cancels itself; these are referenced, as by a traceback.
    opened, alive = calls._open, []

    def kept(*arguments: Any) -> Any:
        alive.append(opened(*arguments))
        return alive[-1]

    calls._open = kept  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        await server.stop(0)


async def is_cancelled(served: WaitingServer) -> bool:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(served.cancelled.wait(), 5)
    return served.cancelled.is_set()


@pytest.mark.parametrize(
    ("error", "deadline_s", "kind"), [("refused", None, DraftproofError), ("", 0.3, RequestTimeoutError)]
)
def test_a_failed_call_is_cancelled(
    error: str, deadline_s: float | None, kind: type[DraftproofError]
) -> None:
    async def fail() -> bool:
        served = WaitingServer(error)
        async with calls_to(served) as calls:
            ends_s = None if deadline_s is None else time.monotonic() + deadline_s
            with pytest.raises(kind):
                await calls.whole("draft", PROMPT, ("output_ids",), request_id="r", deadline_s=ends_s)
            return await is_cancelled(served)

    assert asyncio.run(fail())


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (
            "Maximum queue size of 4 has been reached, please try again later",
            ServerBusyError,
            "queue of model",
        ),
        (
            "Executor failed process requestId 3 due to the following error: Assertion failed: x "
            "(/src/tensorrt_llm/cpp/x.cpp:12)\n1 0x7f12 tensorrt_llm::common::throw()",
            EngineFailedError,
            "Assertion failed: x; ",
        ),
        (
            "Executor failed process requestId 3 due to the following error: Encountered an error when "
            "fetching new request: [TensorRT-LLM][ERROR] Assertion failed: To return generation logits, "
            "gather_generation_logits must be enabled in ExecutorConfig (/src/x.cpp:12)\n1 0x7f12",
            RequestRefusedError,
            "refused the request: .*gather_generation_logits must be enabled in ExecutorConfig; ",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: !mTokens.empty() (/src/x.cpp:47)\n1 0x7f12",
            RequestRefusedError,
            "refused the request: ",
        ),
        (
            "Executor failed process requestId 3 due to the following error: Encountered an error in "
            "forwardAsync function: [TensorRT-LLM][ERROR] Assertion failed: y (/src/x.cpp:12)",
            EngineFailedError,
            "'target' failed: ",
        ),
        ("draftproof/invalid_request: no; a; b; c", InvalidRequestError, "^no; a; b; c$"),
    ],
)
def test_errors_of_the_backend_become_ours(message: str, kind: type[DraftproofError], words: str) -> None:
    error = model_error("target", message)
    assert type(error) is kind
    with pytest.raises(kind, match=words):
        raise error
    assert "0x7f" not in str(error) and ".cpp" not in str(error)


def test_nobody_answers_where_no_server_is() -> None:
    async def ask() -> None:
        calls = ServerCalls("127.0.0.1:1")
        await calls.whole("target", {"input_ids": np.zeros((1, 1), np.int32)}, (), request_id="r")

    with pytest.raises(EngineFailedError, match="does not answer its own models") as failed:
        asyncio.run(ask())
    assert ADDRESS_VARIABLE in str(failed.value)
