"""Loads the model ``target`` of the embedded runtime, which passes requests on to the target's process.

The process of ``speculative`` holds the target and answers at a socket of its own for it, without the loop
(``docs/decisions/engine-process.md``).
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

from pipelines.asyncio_thread import AsyncioThread
from pipelines.triton.backend.gauges import Gauges
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.wire import TritonWire
from pipelines.triton.engine.model import GenerationModel
from pipelines.wire.calls import Call, stream
from pipelines.wire.responder import Responder


class Relay:
    """Passes requests on to a socket and their responses back.

    Attributes:
        loop: The thread of the requests.

    Args:
        socket: The socket.
    """

    def __init__(self, socket: Path) -> None:
        self.loop = AsyncioThread("requests")
        self.loop.start()
        self._socket = socket

    def begin(self, call: Call, responder: Responder, number: str) -> Future[None]:
        """Start passing a call on."""
        running = self.loop.spawn(self._pass_on(call, responder))
        responder.follow(running)
        return running

    async def _pass_on(self, call: Call, responder: Responder) -> None:
        async with aclosing(stream(self._socket, call)) as responses:
            async for outputs, is_final in responses:
                responder.send(outputs, is_final=is_final)


def load_relay_model(parameters: ModelParameters, backend: Any) -> GenerationModel:
    """Start passing requests on to ``engine_socket``.

    Args:
        parameters: The model's settings.
        backend: The module ``triton_python_backend_utils``.
    """
    gauges = Gauges(backend, parameters.model_name)
    gauges.start()
    relay = Relay(parameters.path("engine_socket"))
    return GenerationModel(parameters, TritonWire(backend), relay, on_close=gauges.stop)
