"""Answers requests with the engines of this machine, through the router in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from pipelines.front_door.served_model import ServedModel
from pipelines.router.preprocessing import Preprocessing
from pipelines.router.router import Router
from pipelines.socket_path import is_listening
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest


class OwnServer:
    """The engines of this machine (``RouterCalls``). Used on one event loop.

    Attributes:
        max_requests: Most requests that the pair answers or keeps waiting at a time; it refuses others.
        metrics: What operators see of its arms.

    Args:
        model: The model.
        settings: Parameters of the model ``router`` (``rendered_parameters``).
        timeout_s: Longest time of an answer in seconds; None for as long as its engine lives.
    """

    def __init__(
        self, model: ServedModel, settings: Mapping[str, str], timeout_s: float | None = None
    ) -> None:
        self.max_requests = model.max_requests
        self._timeout_us = 0 if timeout_s is None else max(1, round(1e6 * timeout_s))
        preprocessing = Preprocessing(model.tokenizer, model.max_seq_len)
        self._router = Router.of(settings.__getitem__, preprocessing, in_rollouts=True)
        self.metrics = self._router.routing.metrics

    async def close(self) -> None:
        """Stop replays and write the last observations."""
        await self._router.close()
        await asyncio.to_thread(self._router.log.close)

    async def is_ready(self) -> bool:
        """Return whether a process takes requests: in a rollout, that of the candidate may stand in."""
        table = self._router.routing.table
        return any(is_listening(Path(socket)) for socket in (table.stable, table.candidate) if socket)

    def stream(self, request: CompletionRequest, *, streaming: bool) -> AsyncGenerator[Chunk, None]:
        """Answer one request and stream its chunks; closing the generator cancels the request.

        Args:
            request: The request.
            streaming: Whether the client wants chunks as they come; otherwise there is one.

        Raises:
            DraftproofError: The request was refused, or no arm answered.
        """
        request.check()
        return self._router.answer(request, streaming=streaming, timeout_us=self._timeout_us)
