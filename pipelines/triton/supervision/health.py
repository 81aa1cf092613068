"""Defines how servers query the state of Triton and its models."""

from __future__ import annotations

from typing import Protocol

from pipelines.errors import ServerUnavailableError
from pipelines.triton.gateway.messages.json_requests import Datatypes


class Health(Protocol):
    """State of Triton and its models; implemented by the supervisor."""

    def check_open(self, model: str) -> None:
        """Refuse a request to a model that cannot answer.

        Raises:
            ServerUnavailableError: The server is starting or stopping, or the model is being replaced.
        """

    async def is_ready(self) -> bool:
        """Whether all models that the server loads at startup answer."""

    async def is_model_ready(self, model: str) -> bool:
        """Whether a model answers."""

    async def datatypes(self, model: str) -> Datatypes:
        """Return the types of a model's inputs.

        Raises:
            InvalidRequestError: There is no such model.
            ServerUnavailableError: Triton does not answer.
        """

    async def control(self, model: str, action: str) -> None:
        """Load or unload a model.

        Raises:
            RepositoryError: Triton refused.
            ServerUnavailableError: Triton does not answer.
        """

    def triton_ended(self, values: str) -> ServerUnavailableError:
        """Return the error for the clients of open requests when Triton has ended."""
