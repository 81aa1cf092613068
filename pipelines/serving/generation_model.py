"""The life of a request inside ``draft``, ``target`` and ``speculative``: all but the decoding.

Requests come from Triton, or over the socket from another model of the server. Whoever brings one gets
back at once; a coroutine on the step loop answers it. Client gone, ``stop`` received or server ending:
the coroutine is cancelled, which gives its KV blocks back.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, Protocol

import numpy.typing as npt

from pipelines.executor.step_loop import StepLoop
from pipelines.serving.call_server import CallServer
from pipelines.serving.contract import GenerationCall, is_stop, parse_call, refuse_unknown_parameters
from pipelines.serving.inputs import Inputs
from pipelines.serving.local_calls import Call
from pipelines.serving.outbox import Outbox
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.responder import Outlet, Responder
from pipelines.serving.token_times import TokenTimes
from pipelines.serving.triton_outlet import TritonOutlet
from pipelines.serving.triton_wire import TritonWire
from pipelines.text.vocabulary import Vocabulary

CLOSE_TIMEOUT_S = 5.0  # for the last responses to go out when the server ends

Outputs = dict[str, npt.NDArray[Any]]


class Answerer(Protocol):
    """The part that differs between the models."""

    vocabulary: Vocabulary
    end_ids: tuple[int, ...]

    def check(self, call: GenerationCall) -> None:
        """Refuse what cannot be answered, before it takes a place; raises InvalidRequestError."""

    def answer(self, call: GenerationCall) -> AsyncIterator[tuple[Mapping[str, npt.NDArray[Any]], bool]]:
        """Tensors of each response, and whether it is the last."""


class GenerationModel:
    """Runs requests on an answerer.

    Args:
        parameters: The model's settings.
        wire: Triton.
        loop: Started; stopped by ``close``.
        answerer: Decodes.
        times: Measures streamed answers.
        on_close: Called at the end.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        wire: TritonWire,
        loop: StepLoop,
        answerer: Answerer,
        times: TokenTimes,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._parameters = parameters
        self._wire = wire
        self._loop = loop
        self._answerer = answerer
        self._times = times
        self._on_close = on_close
        self._outbox = Outbox()
        self._numbers = itertools.count(1)
        self._running: dict[str, Future[None]] = {}
        self._calls = None
        if "socket" in parameters.values:
            self._calls = CallServer(parameters.path("socket"), self._take_call)

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; returns at once, the answers follow."""
        for request in requests:
            request_id = self._name(request.request_id())
            outlet = TritonOutlet(self._wire, request, self._outbox, request_id)
            responder = Responder(outlet, request_id)
            try:
                inputs = self._wire.inputs(request)
                if is_stop(inputs):
                    self._stop(request.request_id())
                    responder.finish()
                    continue
                timeout_us = refuse_unknown_parameters(request.parameters(), self._parameters.input_names)
                self._begin(inputs, request_id, request.timeout() or timeout_us, responder)
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what runs and send the last responses."""
        for running in tuple(self._running.values()):
            running.cancel()
        self._loop.stop()
        if self._calls is not None:
            self._calls.close()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later
        self._on_close()

    def _take_call(self, call: Call, outlet: Outlet) -> None:
        """Take a request of another model of this server (``call_server.Begin``)."""
        request_id = self._name(call.request_id)
        responder = Responder(outlet, request_id)
        try:
            self._begin(call.tensors, request_id, call.timeout_us, responder)
        except Exception as error:
            responder.fail(error)

    def _name(self, request_id: str) -> str:
        # A client's id need not be unique, so a number is added.
        return f"{request_id or 'request'}#{next(self._numbers)}"

    def _begin(self, inputs: Inputs, request_id: str, timeout_us: int, responder: Responder) -> None:
        answerer = self._answerer
        call = parse_call(inputs, request_id, answerer.vocabulary, answerer.end_ids, timeout_us)
        answerer.check(call)
        running = self._loop.spawn(self._answer(call, responder))
        self._running[request_id] = running
        running.add_done_callback(lambda _: self._running.pop(request_id, None))
        responder.follow(running)

    async def _answer(self, call: GenerationCall, responder: Responder) -> None:
        note_time = self._times.begin() if call.streaming else lambda num_tokens, is_final: None
        async with aclosing(self._answerer.answer(call)) as responses:  # type: ignore[type-var]
            async for outputs, is_final in responses:
                responder.send(outputs, is_final=is_final)
                note_time(int(outputs["sequence_length"].item()), is_final)

    def _stop(self, request_id: str) -> None:
        """Cancel the request of this id, ours with the number or the client's without."""
        for running_id, future in tuple(self._running.items()):
            if request_id in (running_id, running_id.rpartition("#")[0]):
                future.cancel()
