"""The rules for every request of a front door: errors become responses, and clients must take these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError
from pipelines.front_door.access.requests_in_progress import RequestsInProgress
from pipelines.front_door.delivery import deliver
from pipelines.front_door.errors import response_to
from pipelines.front_door.observing.exchange import EXCHANGE
from pipelines.front_door.requests.body import refuse_compressed


async def guarded(
    request: web.Request, answer: Awaitable[web.StreamResponse], settings: FrontDoorSettings
) -> web.StreamResponse:
    """Answer a request, convert errors to responses, and see to it that the client takes the response.

    Args:
        request: The request, which is recorded (``observing.exchange``).
        answer: Answers it.
        settings: Limits that an error may name.
    """
    try:
        response = await _answered(request, answer, settings)
        await deliver(request, response)
    except ConnectionError:
        request[EXCHANGE].has_left = True
        return web.Response(status=400)  # never delivered
    return response


async def in_turn(
    request: web.Request,
    in_progress: RequestsInProgress,
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Answer a request that a drain waits for, until its response is delivered.

    Raises:
        DraftproofError: There are too many, the server stops, or the request is refused.
    """
    with in_progress.one_more():
        refuse_compressed(request)
        response = await answer(request)
        await deliver(request, response)
        return response


def is_local_scrape(request: web.Request) -> bool:
    """Whether this machine asks for metrics: Prometheus has no key, and HAProxy has a port for them."""
    return request.path == "/metrics" and request.remote in ("127.0.0.1", "::1")


async def _answered(
    request: web.Request, answer: Awaitable[web.StreamResponse], settings: FrontDoorSettings
) -> web.StreamResponse:
    try:
        return await answer
    except ConnectionError:
        raise  # the client has left
    except Exception as error:
        if isinstance(error, DraftproofError):
            request[EXCHANGE].error = error
        return response_to(error, request, settings)
