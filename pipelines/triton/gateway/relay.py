"""Sends checked requests to Triton and hands its responses to the servers of both protocols.

Each request is a ``ModelStreamInfer`` call of its own, for two reasons. The text models are decoupled, so
that they can stream, and Triton 2.51 refuses ``ModelInfer`` on such models. And it never ends a request whose
model's process has died: then the call is cancelled, and no other request is on it
(``docs/explanation/architecture.md``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.triton.backend.header import ARM_PARAMETER, KEY_PARAMETER
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.request_checks import (
    LARGE_BODY_BYTES,
    asks_to_stream,
    check_model,
    check_request,
)
from pipelines.triton.gateway.triton import Triton, error_behind, error_of
from pipelines.triton.supervision.supervisor import Supervisor

_FINAL = "triton_final_response"  # Triton's mark in streams, which calls for one response do not have


_ALIASES = {
    "generate": ("router", "stable"),
    "generate_target": ("router", "control"),
    "target": ("speculative", "control"),
}
"""Names by which clients ask for one arm of a model. A model of the repository comes before its alias."""


@dataclass(frozen=True)
class CheckedRequest:
    """A request that Triton may see.

    Attributes:
        asked: The model's name, as the client gave it.
        message: The ``ModelInferRequest`` for Triton.
    """

    asked: str
    message: Any


class Relay:
    """Relays requests to Triton's models, and describes them under the names by which clients ask.

    Attributes:
        triton: Connections to Triton.
        supervisor: State of Triton and its models.
        calls: Tracks open requests.

    Args:
        triton: See the attribute.
        supervisor: See the attribute.
        calls: See the attribute.
        repository: The model repository.
    """

    def __init__(self, triton: Triton, supervisor: Supervisor, calls: OpenCalls, repository: Path) -> None:
        models = {path.parent.name for path in repository.glob("*/config.pbtxt")}
        self._aliases = {name: served for name, served in _ALIASES.items() if name not in models}
        self.triton = triton
        self.supervisor = supervisor
        self.calls = calls

    def model_of(self, asked: str) -> str:
        """Return Triton's model that answers requests to a name."""
        return self._aliases.get(asked, (asked, ""))[0]

    async def opened(self, asked: str, *, is_operator: bool) -> None:
        """Wait until a model may be asked, or refuse the request before its body is read.

        Raises:
            InvalidRequestError: The client may not ask the model.
            ServerUnavailableError: The model cannot answer now.
        """
        check_model(asked, is_operator=is_operator)
        await self.supervisor.opened(self.model_of(asked))

    async def metadata(self, asked: str, version: str = "", *, is_operator: bool) -> Any:
        """Return the ``ModelMetadataResponse`` of a model.

        Raises:
            InvalidRequestError: The client may not ask the model.
            grpc.aio.AioRpcError: Triton refused or does not answer.
        """
        check_model(asked, is_operator=is_operator)
        model = self.model_of(asked)
        document = await self.triton.ask("ModelMetadata", name=model, version=version)
        document.name = asked
        return document

    async def configuration(self, asked: str, version: str = "", *, is_operator: bool) -> Any:
        """Return the ``ModelConfigResponse`` of a model; see ``metadata``."""
        check_model(asked, is_operator=is_operator)
        model = self.model_of(asked)
        document = await self.triton.ask("ModelConfig", name=model, version=version)
        document.config.name = asked
        if not is_operator:
            document.config.ClearField("parameters")  # they contain paths of this machine
        return document

    async def check(self, read: Callable[[], Any], num_bytes: int, *, is_operator: bool) -> CheckedRequest:
        """Read and check a request.

        Args:
            read: Returns the client's ``ModelInferRequest``; called on another thread for a large one.
            num_bytes: Its size.
            is_operator: Whether the client sent the server's key.

        Raises:
            InvalidRequestError: The request is invalid or not allowed.
            ForbiddenError: It needs the server's key.
            ServerUnavailableError: The model cannot answer now.
        """

        def work() -> CheckedRequest:
            message = read()
            check_request(message, is_operator=is_operator)
            asked = message.model_name
            message.model_name, arm = self._aliases.get(asked, (asked, ""))
            message.parameters[KEY_PARAMETER].string_param = self.triton.server_key
            if arm:
                message.parameters[ARM_PARAMETER].string_param = arm
            return CheckedRequest(asked, message)

        request = work() if num_bytes < LARGE_BODY_BYTES else await asyncio.to_thread(work)
        await self.supervisor.opened(request.message.model_name)
        return request

    async def stream(self, request: CheckedRequest, take: Callable[[Any], Awaitable[None]]) -> None:
        """Send a request and await ``take`` with each ``ModelInferResponse``.

        Raises:
            DraftproofError: The model's error, Triton or the model's process ended, or too many are open.
        """
        model = request.message.model_name

        async def relay() -> None:
            async with aclosing(self.triton.responses(request.message)) as arriving:
                async for arrival in arriving:
                    if arrival.error_message:
                        raise error_behind(arrival.error_message)
                    self.calls.hear(model)
                    arrival.infer_response.model_name = request.asked
                    await take(arrival.infer_response)

        try:
            await self.calls.run(model, relay())
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def one_response(self, request: CheckedRequest) -> Any:
        """Send a request and return its only response, a ``ModelInferResponse``.

        Raises:
            DraftproofError: See ``stream``; or the request asks for chunks, or the model sent more or less
                than one response.
        """
        if asks_to_stream(request.message):
            raise _not_one("stream is true")
        responses = []

        async def keep(response: Any) -> None:
            if response.outputs:
                responses.append(response)

        await self.stream(request, keep)
        if len(responses) != 1:
            raise _not_one(f"the model sent {len(responses)}")
        responses[0].parameters.pop(_FINAL, None)
        return responses[0]


def _not_one(why: str) -> DraftproofError:
    return InvalidRequestError(
        f"the call needs exactly one response, but {why}",
        "leave out stream=true; generate_stream and ModelStreamInfer send chunks",
    )
