"""``generate_unary`` and ``generate_target_unary``: an ensemble for clients that want one response.

Triton refuses KServe's ``infer`` (HTTP) and ``ModelInfer`` (gRPC) on models that may give several
responses, as the ensembles do. These models are not of that kind; they pass a request on and its one
answer back. ``docs/decisions/0005-kserve-v2-unary.md`` has the alternatives.
"""

from __future__ import annotations

import asyncio
import gc
import uuid
from typing import Any

from pipelines.errors import EngineFailedError, InvalidRequestError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.bls_engines import use_threads_for_calls
from pipelines.serving.contract import refuse_unknown_parameters
from pipelines.serving.generation_model import CLOSE_TIMEOUT_S
from pipelines.serving.outbox import Outbox
from pipelines.serving.parameters import ModelParameters
from pipelines.serving.responder import Responder
from pipelines.serving.stop_request import stop_tensors
from pipelines.serving.triton_wire import TritonWire

NUM_SPARE_CALLS = 8  # requests beyond the queue, which wait here only to be told that it is full


class UnaryModel:
    """Passes requests on to an ensemble.

    Args:
        parameters: ``ensemble`` names the model to ask, ``engine_model`` the step of it that generates.
        backend: The module ``triton_python_backend_utils``.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        self._parameters = parameters
        self._ensemble = parameters.text("ensemble")
        self._engine_model = parameters.text("engine_model")
        self._wire = TritonWire(backend)
        self._outbox = Outbox()
        self._loop = StepLoop(())
        self._loop.start()
        max_calls = parameters.integer("max_batch_size") + parameters.integer("max_queue_size")
        use_threads_for_calls(self._loop, max_calls + NUM_SPARE_CALLS)

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; returns at once, the answers follow."""
        for request in requests:
            request_id = f"{request.request_id() or 'unary'}-{uuid.uuid4().hex[:12]}"
            responder = Responder(self._wire, request, self._outbox, request_id)
            try:
                timeout_us = refuse_unknown_parameters(request.parameters(), self._parameters.input_names)
                inputs = self._wire.inputs(request)
                if "stream" in inputs and inputs.pop("stream").any():
                    raise _no_stream(self._ensemble)
                call = self._pass_on(inputs, request_id, request.timeout() or timeout_us, responder)
                responder.follow(self._loop.spawn(call))
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Cancel what runs and send the last responses."""
        self._loop.stop()
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later

    async def _pass_on(
        self, inputs: dict[str, Any], request_id: str, timeout_us: int, responder: Responder
    ) -> None:
        names = self._parameters.output_names
        try:
            responses = await self._wire.call(
                self._ensemble, inputs, names, request_id=request_id, timeout_us=timeout_us
            )
            if len(responses) != 1:
                raise EngineFailedError(
                    f"'{self._ensemble}' did not give one response",
                    values=f"{len(responses)} responses",
                    limit="exactly one without streaming",
                    remedy="the server's log has the cause",
                )
            responder.send(responses[0], is_final=True)
        except asyncio.CancelledError:
            # The call itself cannot be withdrawn, but the engine can be told to end it.
            stop = self._wire.call(self._engine_model, stop_tensors(), ["output_ids"], request_id=request_id)
            await asyncio.shield(stop)
            raise


def _no_stream(ensemble: str) -> InvalidRequestError:
    return InvalidRequestError(
        "this model cannot stream",
        values="stream=true",
        limit="one response per request",
        remedy=f"use '{ensemble}' through generate_stream or gRPC ModelStreamInfer",
    )
