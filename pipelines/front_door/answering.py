"""Answers a request, in one response or as a stream of events, in the format of its endpoint."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from aiohttp import web
from pydantic_core import to_json

from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.front_door.access.clients import CLIENT
from pipelines.front_door.delivery import EventStream
from pipelines.front_door.errors import DEFECT, in_the_clients_words
from pipelines.front_door.observing.exchange import EXCHANGE
from pipelines.front_door.requests.sampling import SamplingFields
from pipelines.front_door.router_calls import RouterCalls, generate_all, merged
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import by_token
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

_LOG = logging.getLogger(__name__)


class Format(Protocol):
    """Writes the answers to one request."""

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed; called on another thread.

        Log probabilities of many tokens take seconds.
        """

    def events(self, number: int, chunk: Chunk) -> Iterable[dict[str, Any]]:
        """Return the events for a chunk of an answer, the first with those that begin the answer."""

    def sign(self) -> Iterable[dict[str, Any]]:
        """Return the events that say that the answer is still computed; none if a comment is enough."""

    def end(self) -> Iterable[dict[str, Any]]:
        """Return the events after all answers."""


async def answer(
    request: web.Request,
    model: ServedModel,
    router: RouterCalls,
    asked: Sequence[CompletionRequest],
    form: Format,
    body: SamplingFields,
) -> web.StreamResponse:
    """Ask ``router`` for every answer of a request and send them.

    If the client leaves, aiohttp cancels this coroutine, and so the requests.

    Args:
        request: The client's request.
        model: The model.
        router: Connection to ``router``.
        asked: One request for each answer.
        form: Writes the answers.
        body: The fields of the client's request.

    Raises:
        DraftproofError: The request failed before anything was sent.
        ConnectionResetError: The client has left.
    """
    _check_number(len(asked), router.max_requests)
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
                is_by_token = body.stream_options is not None and body.stream_options.stream_interval == 1
                pieces = partial(by_token, model) if is_by_token else lambda chunk: (chunk,)
                return await _stream(request, router, asked, form, pieces)
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
    pieces: Callable[[Chunk], Iterable[Chunk]],
) -> web.StreamResponse:
    events, exchange = EventStream(request), request[EXCHANGE]

    def written(number: int, chunk: Chunk) -> list[dict[str, Any]]:
        return [event for piece in pieces(chunk) for event in form.events(number, piece)]

    try:
        async with (
            events.kept_alive(form.sign),
            aclosing(merged([router.stream(each) for each in asked])) as arriving,
        ):
            async for number, chunk in arriving:
                exchange.add(number, chunk)
                if chunk.prompt_log_probs:  # of a whole prompt
                    await events.send(*await asyncio.to_thread(written, number, chunk))
                else:
                    await events.send(*written(number, chunk))
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


def _check_number(num_answers: int, limit: int) -> None:
    if num_answers > limit:
        raise InvalidRequestError(
            f"prompts times n ask for {num_answers} answers, and at most {limit} are possible: the server's "
            "max_batch_size and max_queue_size",
            "send several requests, one after the other",
        )


def json_response(document: Any, status: int = 200) -> web.Response:
    """Return a document as JSON."""
    return web.Response(body=to_json(document), status=status, content_type="application/json")
