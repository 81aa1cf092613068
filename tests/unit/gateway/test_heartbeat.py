"""Tests of which answers to a ping are a sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from pipelines.errors import EngineFailedError, InvalidRequestError, ServerUnavailableError
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import error_behind, error_of
from pipelines.triton.supervision import heartbeat
from pipelines.triton.supervision.heartbeat import Heartbeat

PAUSED = "Stub process 'generate_0_0' is not healthy."
"""Triton 2.51's answers within 2 s for a process that is paused."""


class Answering:
    """A replacement for Triton that answers each ping in one way."""

    server_key = "key"

    def __init__(self, error: str) -> None:
        self.error = error
        self.num_pings = 0

    async def is_ready(self, model: str) -> bool:
        return True

    async def ask(self, method: str, name: str) -> Any:
        reply = service_pb2.ModelConfigResponse()
        for name in ("QUERY", "INPUT_IDS"):
            reply.config.input.add(name=name, data_type="TYPE_STRING", dims=[1], optional=True)
        return reply

    async def responses(self, message: Any) -> AsyncIterator[Any]:
        assert len(message.inputs) == 1, "Triton refuses a request without inputs, past the model"
        self.num_pings += 1
        await asyncio.sleep(0.01)
        yield service_pb2.ModelStreamInferResponse(error_message=self.error)


@pytest.mark.parametrize(
    ("error", "hangs"), [("", False), ("inputs of an engine that knows no pings", False), (PAUSED, True)]
)
async def test_triton_that_answers_for_a_silent_process_is_no_sign_of_its_life(
    error: str, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When each such answer counted as a sign of life, a paused process was never replaced."""
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.02)
    monkeypatch.setattr(heartbeat, "HANGS_AFTER_S", 0.3)
    triton = Answering(error)
    beating = Heartbeat(triton, OpenCalls())  # type: ignore[arg-type]
    for _ in range(50):
        beating.beat("generate")
        await asyncio.sleep(0.01)
    assert beating.hangs("generate") is hangs
    assert triton.num_pings > 3
    beating.forget("generate")
    assert not beating.hangs("generate")


def test_a_request_that_a_silent_process_did_not_take_is_not_the_clients_fault() -> None:
    assert isinstance(error_behind(PAUSED), EngineFailedError)
    assert isinstance(error_behind("unexpected inference input 'x'"), InvalidRequestError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, ServerUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, ServerUnavailableError),
        (grpc.StatusCode.NOT_FOUND, InvalidRequestError),
    ],
)
def test_a_call_that_triton_does_not_answer_is_not_the_clients_fault(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    failed = SimpleNamespace(code=lambda: code, details=lambda: "no words of ours")
    assert isinstance(error_of(failed), kind)


async def test_a_gateway_that_was_kept_waiting_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of 5,000 connections once blocked the loop for seconds, and silent Triton was killed."""
    now_s = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now_s[0])
    beating = Heartbeat(Answering(""), OpenCalls())  # type: ignore[arg-type]
    beating.beat("generate")
    now_s[0] += heartbeat.TRITON_HANGS_AFTER_S + 1
    assert beating.triton_hangs() and beating.hangs("generate")
    beating.excuse(heartbeat.TRITON_HANGS_AFTER_S)
    assert not beating.triton_hangs() and not beating.hangs("generate")
    beating.forget("generate")


@pytest.mark.parametrize(("num_open", "is_silent"), [(8, True), (2000, False)])
async def test_a_ping_may_wait_behind_the_requests_before_it(
    num_open: int, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 5,000 requests in one burst a healthy model once counted as silent for four seconds."""
    now_s = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(OpenCalls, "num_open", num_open)
    beating = Heartbeat(Answering(""), OpenCalls())  # type: ignore[arg-type]
    beating.beat("generate")
    now_s[0] += heartbeat.SILENT_AFTER_S + 1
    assert beating.is_silent("generate") is is_silent
    beating.forget("generate")
