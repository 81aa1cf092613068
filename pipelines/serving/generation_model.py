"""The life of a request inside ``draft``, ``target`` and ``speculative``: all but the decoding.

Triton's thread hands the requests over and gets back at once. Each is answered by a coroutine on the
step loop; responses go out through the outbox. Client gone, ``stop`` received or server ending: the
coroutine is cancelled, which gives its KV blocks back.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any, Protocol

import numpy.typing as npt

from pipelines.executor.step_loop import StepLoop
from pipelines.serving.contract import GenerationCall, is_stop, parse_call, refuse_unknown_parameters
from pipelines.serving.local_calls import serve_calls
from pipelines.serving.outbox import Outbox
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.responder import Responder, internal_error
from pipelines.serving.token_times import TokenTimes
from pipelines.serving.triton_wire import TritonWire, text_tensor
from pipelines.text.vocabulary import Vocabulary

_LOG = logging.getLogger(__name__)

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
        if "socket" in parameters.values:  # listens as long as the loop runs
            loop.spawn(serve_calls(parameters.path("socket"), self._answer_call, _describe)).result()

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; returns at once, the answers follow."""
        for request in requests:
            # A client's id need not be unique, so a number is added.
            request_id = f"{request.request_id() or 'request'}#{next(self._numbers)}"
            responder = Responder(self._wire, request, self._outbox, request_id)
            try:
                self._begin(request, request_id, responder)
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what runs and send the last responses."""
        for running in tuple(self._running.values()):
            running.cancel()
        self._loop.stop()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later
        self._on_close()

    def _begin(self, request: Any, request_id: str, responder: Responder) -> None:
        inputs = self._wire.inputs(request)
        if is_stop(inputs):
            self._stop(request.request_id())
            responder.finish()
            return
        timeout_us = refuse_unknown_parameters(request.parameters(), self._parameters.input_names)
        call = parse_call(
            inputs,
            request_id,
            self._answerer.vocabulary,
            self._answerer.end_ids,
            request.timeout() or timeout_us,
        )
        self._answerer.check(call)
        running = self._loop.spawn(self._answer(call, responder))
        self._running[request_id] = running
        running.add_done_callback(lambda _: self._running.pop(request_id, None))
        responder.follow(running)

    async def _answer_call(self, inputs: Outputs, request_id: str, timeout_us: int) -> Outputs:
        """Answer another model of this server, in one piece (``local_calls.Answer``)."""
        request_id = f"{request_id}#{next(self._numbers)}"
        answerer = self._answerer
        call = parse_call(inputs, request_id, answerer.vocabulary, answerer.end_ids, timeout_us)
        answerer.check(call)
        async with aclosing(answerer.answer(call)) as responses:  # type: ignore[type-var]
            async for outputs, is_final in responses:
                if is_final:
                    return dict(outputs)
        raise RuntimeError("the answer ended without a last response")

    async def _answer(self, call: GenerationCall, responder: Responder) -> None:
        handle = text_tensor(f"{self._parameters.model_name}/{call.request.request_id}")
        note_time = self._times.begin() if call.streaming else lambda num_tokens, is_final: None
        async with aclosing(self._answerer.answer(call)) as responses:  # type: ignore[type-var]
            async for outputs, is_final in responses:
                responder.send({**outputs, "request_handle": handle}, is_final=is_final)
                note_time(int(outputs["sequence_length"].item()), is_final)

    def _stop(self, request_id: str) -> None:
        """Cancel the request of this id, ours with the number or the client's without."""
        for running_id, future in tuple(self._running.items()):
            if request_id in (running_id, running_id.rpartition("#")[0]):
                future.cancel()


def _describe(error: BaseException) -> str:
    _LOG.error("a call of another model failed", exc_info=error)
    return internal_error("of another model").to_wire()
