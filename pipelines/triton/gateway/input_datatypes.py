"""Reads the datatypes of models' inputs from Triton, once for each model."""

from __future__ import annotations

import asyncio

from pipelines.triton.gateway.messages.json_requests import Datatypes
from pipelines.triton.gateway.triton import Triton


class InputDatatypes:
    """Keeps the datatypes of each model's inputs. Used on one event loop.

    Args:
        triton: Connections to Triton.
    """

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._reading: dict[str, asyncio.Task[Datatypes]] = {}

    async def of(self, model: str) -> Datatypes:
        """Return the datatypes of a model's inputs by name.

        The first requests to a model may be thousands at once: all of them wait for one answer of Triton.

        Raises:
            InvalidRequestError: There is no such model.
            ServerUnavailableError: Triton does not answer.
        """
        if model not in self._reading:
            self._reading[model] = asyncio.create_task(self._read(model))
        return await asyncio.shield(self._reading[model])  # a client that leaves does not end it for others

    def forget(self, model: str) -> None:
        """Read the model's configuration again for the next request."""
        self._reading.pop(model, None)

    async def _read(self, model: str) -> Datatypes:
        try:
            config = await self._triton.config(model)
        except BaseException:  # a failure is not kept, whatever it is
            self.forget(model)
            raise
        return {
            each["name"]: each["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES")
            for each in config["input"]
        }
