"""Pings Triton and each model on the same path as requests.

A ping goes through Triton and the model's process to the thread that answers requests, and back. It does not
use the engine: long steps have their own time limit (``executor/engine.py``).
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2, service_pb2

from pipelines.triton.backend.header import KEY_PARAMETER, PING_PARAMETER
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.request_checks import DTYPE_BYTES
from pipelines.triton.gateway.triton import Triton, says_that_a_process_is_silent

INTERVAL_S = 3.0  # without any response, until a ping is sent: ten models are ten pings
SILENT_AFTER_S = 1.5  # without an answer to a ping, until the model counts as not ready
HANGS_AFTER_S = 8.0  # until its process is replaced
QUEUED_S = 0.002  # more for each open request, since a ping waits behind those that came before it
TRITON_HANGS_AFTER_S = 20.0  # until Triton is restarted, which ends all answers


class Heartbeat:
    """Pings all models of one Triton.

    Args:
        triton: Connections to Triton.
        calls: Tracks responses to clients, which make pings unnecessary.
    """

    def __init__(self, triton: Triton, calls: OpenCalls) -> None:
        self._triton = triton
        self._calls = calls
        self._pings: dict[str, asyncio.Task[None]] = {}
        self._owes_since_s: dict[str, float] = {}
        self._triton_ping: asyncio.Task[None] | None = None
        self._triton_heard_at_s = time.monotonic()

    def beat(self, model: str) -> None:
        """Send a ping, unless the model has recently responded or a ping is pending."""
        if model not in self._pings and time.monotonic() - self._calls.heard_at_s(model) > INTERVAL_S:
            self._owes_since_s.setdefault(model, time.monotonic())
            self._pings[model] = asyncio.create_task(self._ping(model))

    def is_silent(self, model: str) -> bool:
        """Whether a model has not answered a ping for so long that it should get no requests."""
        return self._silence_s(model) > SILENT_AFTER_S

    def hangs(self, model: str) -> bool:
        """Whether a model has not answered a ping for so long that its process must be replaced."""
        return self._silence_s(model) > HANGS_AFTER_S

    def beat_triton(self) -> None:
        """Send a ping to Triton itself, unless one is pending."""
        if self._triton_ping is None or self._triton_ping.done():
            self._triton_ping = asyncio.create_task(self._ping_triton())

    def triton_hangs(self) -> bool:
        """Whether Triton has been silent for so long that it must be restarted."""
        heard_at_s = max(self._triton_heard_at_s, self._calls.latest_heard_at_s)  # a model answers through it
        return time.monotonic() - heard_at_s > TRITON_HANGS_AFTER_S

    def excuse(self, seconds: float) -> None:
        """Ignore a period in which this process itself could not run."""
        self._triton_heard_at_s += seconds
        for model in self._owes_since_s:
            self._owes_since_s[model] += seconds

    def forget(self, model: str) -> None:
        """Forget the state of a model."""
        if task := self._pings.pop(model, None):
            task.cancel()
        self._owes_since_s.pop(model, None)

    def _silence_s(self, model: str) -> float:
        if model not in self._owes_since_s:
            return 0.0
        heard_at_s = max(self._owes_since_s[model], self._calls.heard_at_s(model))
        return time.monotonic() - heard_at_s - QUEUED_S * self._calls.num_open

    async def _ping_triton(self) -> None:
        if await self._triton.is_live():
            self._triton_heard_at_s = time.monotonic()

    async def _ping(self, model: str) -> None:
        is_silent = False
        try:
            if not await self._triton.is_ready(model):
                return  # it is still loading
            reply = await self._triton.ask("ModelConfig", name=model)
            async for response in self._triton.responses(_message(reply.config, self._triton.server_key)):
                is_silent = says_that_a_process_is_silent(response.error_message)
                if not is_silent:
                    self._calls.hear(model)
        except grpc.aio.AioRpcError:
            pass  # Triton has ended, which the supervisor notices itself
        finally:
            if self._pings.get(model) is asyncio.current_task():
                del self._pings[model]
                if not is_silent:
                    self._owes_since_s.pop(model, None)


def _message(config: Any, server_key: str) -> Any:
    """Return a request with the inputs that a model requires, but at least one, filled with zeros."""
    message = service_pb2.ModelInferRequest(model_name=config.name)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    message.parameters[KEY_PARAMETER].string_param = server_key
    message.parameters[PING_PARAMETER].bool_param = True
    required = [tensor for tensor in config.input if not tensor.optional]
    for tensor in required or config.input[:1]:
        kind = model_config_pb2.DataType.Name(tensor.data_type)
        datatype = kind.removeprefix("TYPE_").replace("STRING", "BYTES")
        shape = [1, *(max(1, size) for size in tensor.dims)]
        message.inputs.add(name=tensor.name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(bytes(DTYPE_BYTES.get(datatype, 4) * math.prod(shape)))
    return message
