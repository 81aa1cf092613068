"""The door of a fleet: OpenAI's API, answered by several servers of one pair.

What it must know of the model is asked of the first server that answers. Until then clients get 503.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.ports import DRAIN_S
from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import DraftproofError, ServerUnavailableError
from pipelines.front_door.access.clients import KeyRing
from pipelines.front_door.guarding import openai_application
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.serving import listen, serve
from pipelines.upstreams.fleet.addresses import Addresses
from pipelines.upstreams.fleet.fleet import Fleet
from pipelines.upstreams.fleet.server import GatewayCalls
from pipelines.upstreams.settings import UpstreamSetting

_LOG = logging.getLogger(__name__)

_ASK_INTERVAL_S = 1.0


async def serve_fleet(
    setting: UpstreamSetting,
    front_door: FrontDoorSettings,
    listening: socket.socket,
    stopping: asyncio.Event,
) -> None:
    """Serve until ``stopping`` is set.

    Args:
        setting: The servers.
        front_door: Who may ask, and limits.
        listening: The listening socket.
        stopping: Ends the door.

    Raises:
        DraftproofError: Keys or certificate cannot be read, the servers serve different pairs, or what each
            of them says cannot be read.
    """
    if front_door.keys:
        KeyRing(Path(front_door.keys))  # a file that cannot be used is refused now
    addresses = Addresses(setting.servers, setting.server_name)
    async with listen(_waiting(front_door), front_door, listening.dup()):
        found = await _describe(addresses, stopping)
    if found is None:
        return
    files, own = found
    model = await asyncio.to_thread(ServedModel.of, files)
    metrics = MetricsPage(model, None)
    fleet = Fleet(addresses, model, own, setting.prefix_tokens, front_door.timeout_s)
    await fleet.begin()
    metrics.publish(fleet)
    print(f"{setting.name} serves {model.name} with {len(fleet.servers)} servers", flush=True)
    await serve(model, fleet, metrics, front_door, listening.dup(), stopping, DRAIN_S, checks_model=True)


async def _describe(
    addresses: Addresses, stopping: asyncio.Event
) -> tuple[ServedFiles, ServerIdentity] | None:
    """Return what the first server that answers says of its model and of itself; None when told to stop.

    A server of another version may say what this front door cannot read; it is passed over.

    Raises:
        DraftproofError: All servers answer, and none of the answers can be read.
    """
    asked: tuple[str, ...] = ()
    unreadable: dict[str, DraftproofError] = {}
    while not stopping.is_set():
        known, asked = asked, await addresses.now()
        if asked != known:
            _LOG.warning("asking %d servers what they serve: %s", len(asked), ", ".join(asked) or "none")
        before, unreadable = unreadable, {}
        for address in asked:
            try:
                found = await _ask(address)
            except DraftproofError as error:
                unreadable[address] = error
                if address not in before:
                    _LOG.warning("%s is passed over: %s", address, error)
                continue
            if found is not None:
                return found
        if asked and len(unreadable) == len(asked):
            raise unreadable[asked[0]]
        await asyncio.sleep(_ASK_INTERVAL_S)
    return None


async def _ask(address: str) -> tuple[ServedFiles, ServerIdentity] | None:
    """Return what a server says of its model and of itself; None if it does not answer."""
    calls = GatewayCalls(address)
    try:
        own = ServerIdentity.of_extensions(await calls.extensions())
        content = await calls.served_files() if own is not None else None
    finally:
        await calls.close()
    if own is None or content is None:
        return None
    return ServedFiles.of_wire(content, address), own


def _waiting(settings: FrontDoorSettings) -> web.Application:
    """Return an application that tells every client to come again."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise ServerUnavailableError(
            "no server of the fleet has answered yet", "send the request again later"
        )

    application = openai_application(settings, open_paths=())
    application.router.add_route("*", "/{path:.*}", refuse)
    return application
