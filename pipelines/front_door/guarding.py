"""The rules for every request: how many there may be, who needs a key, and what becomes of errors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, ServerBusyError, ServerUnavailableError
from pipelines.front_door.delivery import deliver
from pipelines.front_door.errors import response_to
from pipelines.front_door.observing.exchange import EXCHANGE, REQUEST_ID, Exchange
from pipelines.web_application import Handler, guarded_application

_LOG = logging.getLogger(__name__)

HEALTH = "/health"
"""Path that tells everybody, by whatever name, whether requests are answered, and nothing else."""

MAX_REQUESTS = 1024
"""Most requests at a time: as many as the gateway has open calls (``gateway.open_calls``)."""

_POLL_S = 0.05


class RequestsInProgress:
    """Counts requests. Used on one event loop.

    Attributes:
        is_draining: Whether new requests are refused because the server stops.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self._number = 0

    def __len__(self) -> int:
        return self._number

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request during a block.

        Raises:
            ServerUnavailableError: The server stops.
            ServerBusyError: Too many requests are in progress.
        """
        if self.is_draining:
            raise ServerUnavailableError(
                f"the server is shutting down: {self._number} requests are still answered",
                "send the request to another server, or later",
            )
        if self._number >= MAX_REQUESTS:
            raise ServerBusyError(
                f"{self._number} requests are open, and at most {MAX_REQUESTS} may be", "send it again later"
            )
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait for those in progress, at most for ``timeout_s``."""
        self.is_draining = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._number and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_POLL_S)


def openai_application(
    settings: FrontDoorSettings, *observers: Callable[[Exchange], None], open_paths: Collection[str]
) -> web.Application:
    """Return an application without paths that answers errors as OpenAI's API does, or Anthropic's.

    Args:
        settings: Who may use it, and its limits.
        *observers: Called with each exchange when it has ended.
        open_paths: Paths that need no API key.
    """

    @web.middleware
    async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
        exchange = request[EXCHANGE] = Exchange.of(request)
        try:
            response = await _answered(request, handler, settings)
            await deliver(request, response)
            exchange.status = response.status
            return response
        except ConnectionError:
            exchange.has_left = True
            return web.Response(status=400)  # never delivered
        except asyncio.CancelledError:
            exchange.has_left = True
            raise
        finally:
            exchange.ended_s = time.monotonic()
            for observe in observers:
                try:
                    observe(exchange)
                except Exception:  # the client has its answer
                    _LOG.exception("request %s was not recorded", exchange.request_id)

    application = guarded_application(
        watch,
        origins=settings.cors_origins,
        hosts=settings.hosts,
        has_pages=True,
        any_host=lambda request: (
            request.path == HEALTH or (bool(settings.keys) and needs_key(request, settings, open_paths))
        ),
        max_body_bytes=settings.max_body_bytes,
    )
    application.on_response_prepare.append(_add_request_id)
    return application


def needs_key(request: web.Request, settings: FrontDoorSettings, open_paths: Collection[str]) -> bool:
    """Whether a request must have an API key, where there are keys.

    Neither address nor headers tell a scrape of this machine from what a proxy on it passes on.
    """
    return request.path not in open_paths and not (settings.open_metrics and request.path == "/metrics")


async def _add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    if (exchange := request.get(EXCHANGE)) is not None:
        response.headers[REQUEST_ID] = response.headers["Request-Id"] = exchange.request_id  # Anthropic's


async def _answered(
    request: web.Request, handler: Handler, settings: FrontDoorSettings
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ConnectionError:
        raise  # the client has left
    except Exception as error:
        if isinstance(error, DraftproofError):
            request[EXCHANGE].error = error
        return response_to(error, request, settings)
