"""Asks for answers: the router of this process, or the servers of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest


class RouterCalls(Protocol):
    """Answers requests with one server (``own_server.OwnServer``) or with several (``upstreams.fleet``)."""

    @property
    def max_requests(self) -> int:
        """Most answers of one request."""

    async def close(self) -> None:
        """Close all connections, which cancels open requests."""

    async def is_ready(self) -> bool:
        """Return whether requests are answered."""

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks; closing the generator cancels the request.

        Raises:
            DraftproofError: It was refused, or no server answers.
        """

    async def generate(self, request: CompletionRequest) -> Chunk:
        """Answer one request in one chunk.

        Raises:
            DraftproofError: As for ``stream``.
        """


async def generate_all(router: RouterCalls, requests: Sequence[CompletionRequest]) -> list[Chunk]:
    """Answer requests concurrently, each in one chunk; the first error cancels the others.

    Raises:
        DraftproofError: As for ``RouterCalls.stream``.
    """
    tasks = [asyncio.create_task(router.generate(request)) for request in requests]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _end(tasks)


async def merged(
    answers: Sequence[AsyncGenerator[Chunk, None]],
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Stream the chunks of several answers as they arrive, each with the number of its answer.

    The first error ends all of them. While nobody takes chunks, at most two of each answer are kept.
    """
    if len(answers) == 1:
        async with aclosing(answers[0]) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    arrived: asyncio.Queue[tuple[int, Chunk | BaseException | None]] = asyncio.Queue(len(answers))
    tasks = [asyncio.create_task(_collect(*each, arrived)) for each in enumerate(answers)]
    try:
        num_open = len(answers)
        while num_open:
            number, arrival = await arrived.get()
            if isinstance(arrival, BaseException):
                raise arrival
            if arrival is None:
                num_open -= 1
            else:
                yield number, arrival
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _collect(
    number: int,
    answer: AsyncGenerator[Chunk, None],
    arrived: asyncio.Queue[tuple[int, Chunk | BaseException | None]],
) -> None:
    try:
        async with aclosing(answer) as chunks:
            async for chunk in chunks:
                await arrived.put((number, chunk))
    except Exception as error:
        await arrived.put((number, error))
    else:
        await arrived.put((number, None))
