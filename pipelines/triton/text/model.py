"""Serves the text model ``router``: text to text by the arm that the router chooses.

The names ``generate`` and ``generate_target`` are the same model with an arm that the gateway adds. The model
``ensemble`` gives the same answers with two more hops through Triton for each chunk, and does not notice that
its client has left (``docs/explanation/architecture.md``).
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Any

from pipelines.asyncio_thread import AsyncioThread
from pipelines.router.arms import Arm
from pipelines.router.router import Router
from pipelines.triton.backend.gauges import Gauges
from pipelines.triton.backend.header import Header
from pipelines.triton.backend.inputs import Inputs, completion_request, read_scalar, refuse_choices
from pipelines.triton.backend.model import CLOSE_TIMEOUT_S, TritonModel
from pipelines.triton.backend.outputs import text_outputs
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest
from pipelines.wire.responder import Responder


class TextModel(TritonModel):
    """Answers Triton's requests.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.

    Raises:
        EngineLoadError: The tokenizer cannot be read, or is not the one for which the model was rendered.
        RepositoryError: A setting is missing.
    """

    def __init__(self, parameters: ModelParameters, backend: Any) -> None:
        self._loop = AsyncioThread("requests")
        super().__init__(backend, parameters.input_names, self._loop, text_outputs)
        self._router = Router.of(parameters.text, parameters.preprocessing())
        self._loop.start()
        self._gauges = Gauges(backend, parameters.model_name)
        arms: tuple[Arm, ...] = ("stable", "control")
        for arm in arms:
            is_out = partial(self._router.routing.is_out, arm)
            self._gauges.add("draftproof_router_arm_out", is_out, arm=arm)
        self._gauges.start()

    def close(self) -> None:
        """Cancel all running requests and send the last responses."""
        self._loop.spawn(self._router.close()).result(CLOSE_TIMEOUT_S)
        self._loop.stop()
        super().close()
        self._router.log.close()
        self._gauges.stop()

    def _begin(self, header: Header, inputs: Inputs, responder: Responder[Chunk], number: str) -> None:
        refuse_choices(inputs, header.arm)
        request = completion_request(inputs)
        streaming = read_scalar(inputs, "stream", False)
        responder.follow(self._loop.spawn(self._answer(header, request, streaming, responder)))

    async def _answer(
        self, header: Header, request: CompletionRequest, streaming: bool, responder: Responder[Chunk]
    ) -> None:
        answered = self._router.answer(
            request,
            streaming=streaming,
            request_id=header.client_id,
            timeout_us=header.timeout_us,
            only_arm=header.arm,
        )
        async with aclosing(answered) as chunks:
            async for chunk in chunks:
                responder.send(chunk, is_final=bool(chunk.finish_reason))
