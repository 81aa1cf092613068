"""Answers a request, in one response or as a stream of events, in the format of its endpoint."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from aiohttp import web
from pydantic_core import to_json

from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.front_door.access.clients import CLIENT
from pipelines.front_door.delivery import EventStream
from pipelines.front_door.errors import DEFECT, in_the_clients_words
from pipelines.front_door.observing.exchange import EXCHANGE
from pipelines.front_door.requests.sampling import SamplingFields
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import joined
from pipelines.wire.request import CompletionRequest

_LOG = logging.getLogger(__name__)


Event = dict[str, Any]
"""What one event of a stream has as JSON."""


class RouterCalls(Protocol):
    """Answers requests with one server (``own_server.OwnServer``) or with several (``upstreams.fleet``)."""

    @property
    def max_requests(self) -> int:
        """Most answers of one request."""

    async def close(self) -> None:
        """Close all connections, which cancels open requests."""

    async def is_ready(self) -> bool:
        """Return whether requests are answered."""

    def stream(self, request: CompletionRequest, *, streaming: bool) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks; closing the generator cancels the request.

        Args:
            request: The request.
            streaming: Whether the client wants chunks as they come; otherwise there may be fewer.

        Raises:
            DraftproofError: It was refused, or no server answers.
        """


class Format(ABC):
    """Writes the answers to one request."""

    @abstractmethod
    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed; called on another thread.

        Log probabilities of many tokens take seconds.
        """

    @abstractmethod
    def events(self, number: int, chunk: Chunk) -> Iterable[Event]:
        """Return the events for a chunk of an answer, the first with those that begin the answer."""

    def sign(self) -> Iterable[Event]:
        """Return the events that say that the answer is still computed; by default a comment is enough."""
        return ()

    def end(self) -> Iterable[Event]:
        """Return the events after all answers; by default none."""
        return ()


async def answer(
    request: web.Request,
    router: RouterCalls,
    asked: Sequence[CompletionRequest],
    form: Format,
    body: SamplingFields,
) -> web.StreamResponse:
    """Ask ``router`` for every answer of a request and send them.

    If the client leaves, aiohttp cancels this coroutine, and so the requests.

    Args:
        request: The client's request.
        router: Connection to ``router``.
        asked: One request for each answer.
        form: Writes the answers.
        body: The fields of the client's request.

    Raises:
        DraftproofError: The request failed before anything was sent.
        ConnectionResetError: The client has left.
    """
    if len(asked) > router.max_requests:
        raise InvalidRequestError(
            f"prompts times n ask for {len(asked)} answers, and at most {router.max_requests} are possible: "
            "the server's max_batch_size and max_queue_size",
            "send several requests, one after the other",
        )
    client = request[CLIENT]
    asked = [
        replace(
            each, session_id=client.session(each.session_id), cache_salt=client.cache_salt(each.cache_salt)
        )
        for each in asked
    ]
    with client.tokens(sum(len(each.prompt_ids) + max(0, each.max_tokens) for each in asked)):
        exchange = request[EXCHANGE]
        exchange.ask(asked, streaming=body.stream)
        try:
            if body.stream:
                return await _stream(request, router, asked, form)
            answers = await generate_all(router, asked)
        except InvalidRequestError as error:
            raise in_the_clients_words(error, body.guide_field) from None
        for number, chunk in enumerate(answers):
            exchange.add(number, chunk)
        return await asyncio.to_thread(lambda: json_response(form.whole(answers)))


async def _stream(
    request: web.Request,
    router: RouterCalls,
    asked: Sequence[CompletionRequest],
    form: Format,
) -> web.StreamResponse:
    events, exchange = EventStream(request), request[EXCHANGE]

    try:
        async with (
            events.kept_alive(form.sign),
            aclosing(merged([router.stream(each, streaming=True) for each in asked])) as arriving,
        ):
            async for number, chunk in arriving:
                exchange.add(number, chunk)
                written = form.events(number, chunk)
                if chunk.prompt_log_probs:  # of a whole prompt
                    written = await asyncio.to_thread(list, written)
                await events.send(*written)
        await events.send(*form.end())
        await events.done()
    except DraftproofError as error:
        if not events.has_begun:
            raise
        exchange.error = error
        await events.fail(error)
    except ConnectionError:
        raise  # the client has left
    except Exception:
        if not events.has_begun:
            raise
        _LOG.exception("%s failed in its stream", request.path)
        exchange.error = DEFECT
        await events.fail(DEFECT)
    return events.response


async def generate_all(router: RouterCalls, requests: Sequence[CompletionRequest]) -> list[Chunk]:
    """Answer requests concurrently, each in one chunk; the first error ends all of them.

    Raises:
        DraftproofError: As for ``RouterCalls.stream``.
    """
    received: list[list[Chunk]] = [[] for _ in requests]
    async with aclosing(merged([router.stream(each, streaming=False) for each in requests])) as arriving:
        async for number, chunk in arriving:
            received[number].append(chunk)
    return list(map(joined, received))


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


def json_response(document: Any, status: int = 200) -> web.Response:
    """Return a document as JSON."""
    return web.Response(body=to_json(document), status=status, content_type="application/json")
