"""Handles Triton's requests to ``target`` and ``speculative``, except for answering them.

If the client disconnects or the server shuts down, the answer is cancelled and its KV blocks are freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.triton.backend.header import Header
from pipelines.triton.backend.inputs import Inputs, engine_request
from pipelines.triton.backend.model import TritonModel
from pipelines.triton.backend.outputs import engine_outputs
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.answering import Answering
from pipelines.wire.calls import CallServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.responder import Responder


class GenerationModel(TritonModel):
    """Answers Triton's requests for tokens.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.
        services: Who answers, by the arm that the gateway adds, "" without one. All have the same loop,
            which runs, and is stopped by ``close``.
        sockets: Answer the calls of other models with the same engines; closed by ``close``.
        on_close: Called at the end of ``close``.
    """

    def __init__(
        self,
        parameters: ModelParameters,
        backend: Any,
        services: Mapping[str, Answering],
        sockets: Sequence[CallServer] = (),
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = services[""].loop
        super().__init__(backend, parameters.input_names, self._loop, engine_outputs)
        self._services = services
        self._sockets = sockets
        self._on_close = on_close

    def close(self) -> None:
        """Cancel all running requests and send the last responses."""
        self._loop.stop()
        for socket in self._sockets:
            socket.close()
        super().close()
        self._on_close()

    def _begin(self, header: Header, inputs: Inputs, responder: Responder[Chunk], number: str) -> None:
        if header.arm not in self._services:
            raise InvalidRequestError(
                f"this model has no arm {header.arm!r:.100}", "send the request to another model"
            )
        service = self._services[header.arm]
        asked = engine_request(inputs, service.vocabulary, header.client_id, header.timeout_us)
        service.begin(asked, responder, number)
