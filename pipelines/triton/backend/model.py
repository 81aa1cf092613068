"""Takes a model's requests from Triton, whatever the model answers.

``triton_python_backend_utils`` exists only inside a model that Triton runs, so the models pass it in.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import ServerStartError
from pipelines.triton.backend.header import Header, read_header, server_key
from pipelines.triton.backend.inputs import Inputs
from pipelines.triton.backend.outputs import Tensors
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.backend.responses import Outbox, TritonOutlet
from pipelines.wire.chunk import Chunk
from pipelines.wire.responder import Responder, unique_number

CLOSE_TIMEOUT_S = 5.0  # for the last responses when the server shuts down


class TritonModel(ABC):
    """Checks each request's metadata, answers pings, and makes sure that every request is answered.

    Args:
        backend: The module ``triton_python_backend_utils``.
        known_inputs: Names that a client may send.
        pinged: The thread that answers requests, and so pings; None if Triton's thread does.
        tensors_of: Returns the tensors of a chunk; None for a model that sends tensors.

    Raises:
        ServerStartError: Triton was not started by the gateway, or the installed numpy is not for it.
    """

    def __init__(
        self,
        backend: Any,
        known_inputs: Iterable[str],
        pinged: AsyncioThread | None,
        tensors_of: Callable[[Chunk], Tensors] | None = None,
    ) -> None:
        if int(np.__version__.split(".")[0]) >= 2:
            raise ServerStartError(
                f"numpy {np.__version__} is installed, with which tensors of this Triton arrive empty",
                "delete .venv and run make again, which installs numpy 1.26",
            )
        self._pb = backend
        self._known_inputs = tuple(known_inputs)
        self._pinged = pinged
        self._tensors_of = tensors_of
        self._outbox = Outbox()
        self._key = server_key()

    def execute(self, requests: list[Any]) -> None:
        """Take requests from Triton; does not wait for the answers."""
        for request in requests:
            number = unique_number()
            outlet = TritonOutlet(self._pb, request, self._outbox, number, self._tensors_of)
            responder: Responder[Any] = Responder(outlet, number)
            try:
                header = read_header(request, self._known_inputs, self._key)
                if header.is_ping:
                    self._show_life(responder)
                else:
                    # Copies, because the arrays are views of memory that Triton frees with the request.
                    inputs = {each.name(): np.array(each.as_numpy()) for each in request.inputs()}
                    self._begin(header, inputs, responder, number)
            except Exception as error:
                responder.fail(error)

    def close(self) -> None:
        """Send the last responses."""
        self._outbox.close(CLOSE_TIMEOUT_S)
        gc.collect()  # what is left of Triton's objects crashes the process if it is freed later

    @abstractmethod
    def _begin(self, header: Header, inputs: Inputs, responder: Responder[Any], number: str) -> None:
        """Start answering a request; ``number`` is its unique id."""

    def _show_life(self, responder: Responder[Tensors]) -> None:
        """Answer a ping where requests are answered, or directly while an engine step blocks that thread."""
        if self._pinged is None or self._pinged.is_blocked:
            responder.send({}, is_final=True)
        else:
            self._pinged.spawn(_answer_ping(responder))


async def _answer_ping(responder: Responder[Tensors]) -> None:
    responder.send({}, is_final=True)


def python_model(load: Callable[[ModelParameters, Any], TritonModel], backend: Any) -> type[Any]:
    """Return the class ``TritonPythonModel`` of a ``model.py``.

    Args:
        load: Returns the model for its parameters and the backend.
        backend: The module ``triton_python_backend_utils``, which exists only in a model's process.
    """

    class TritonPythonModel:
        def initialize(self, args: dict[str, str]) -> None:
            parameters = ModelParameters.from_triton(args)
            self._model = load(parameters, backend)
            print(f"model {parameters.model_name} has loaded", flush=True)  # for the supervisor

        def execute(self, requests: list[object]) -> None:
            self._model.execute(requests)

        def finalize(self) -> None:
            self._model.close()

    return TritonPythonModel
