"""Serve OpenAI's API with the servers of a fleet, without a server on this machine.

What it must know of the model is asked of the first server that answers. Until then clients get 503. Several
such processes share nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import resource
import signal
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.ports import DRAIN_S, Ports
from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import DraftproofError, ServerStartError, ServerUnavailableError
from pipelines.front_door.access.clients import KeyRing
from pipelines.front_door.fleet.addresses import Addresses
from pipelines.front_door.fleet.fleet import Fleet
from pipelines.front_door.fleet.placement import Placement
from pipelines.front_door.fleet.server import GatewayCalls
from pipelines.front_door.guarding import openai_application
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.serving import listen, log_to_standard_output, serve
from pipelines.program import EXIT_PASS, run_program

_LOG = logging.getLogger(__name__)

_ASK_INTERVAL_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Run the front door; returns 0 after SIGTERM or SIGINT, 1 if it cannot start."""
    options = _parse(arguments)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    log_to_standard_output()

    def work() -> int:
        port = Ports.from_environment().openai if options.openai_port is None else options.openai_port
        uvloop.run(_run(options.front_door, port, options.drain_s))
        return EXIT_PASS

    return run_program(work)


async def _run(path: Path, port: int, drain_s: float) -> None:
    """Serve until this process receives a signal to stop.

    Args:
        path: File with the settings.
        port: Port to listen on.
        drain_s: How long to wait for running requests after the signal.

    Raises:
        DraftproofError: A setting or the port cannot be used, the servers serve different pairs, or what
            each of them says cannot be read.
    """
    settings = FrontDoorSettings.read(path)
    if not settings.has_fleet:
        raise ServerStartError(
            f"{path}: no server is named, neither by servers nor by server_name",
            "name the servers, or use 'draftproof serve' for a server with its own front door",
        )
    if settings.keys:
        KeyRing(Path(settings.keys))  # a file that cannot be used is refused now
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with settings.listen(port) as listening:
        addresses = Addresses(settings.servers, settings.server_name)
        async with listen(_waiting(settings), settings, listening.dup()):
            url = settings.url(listening.getsockname()[1])
            print(f"listening on {url}; waiting for a server", flush=True)
            found = await _describe(addresses, stopping)
        if found is None:
            return
        files, own = found
        model = await asyncio.to_thread(ServedModel.of, files)
        metrics = MetricsPage(model, None)
        placement = Placement(settings.prefix_tokens, settings.max_requests_per_server)
        fleet = Fleet(addresses, model, own, placement, settings.timeout_s)
        await fleet.begin()
        metrics.publish(fleet)
        print(f"serving {model.name} with {len(fleet.servers)} servers", flush=True)
        await serve(model, fleet, metrics, settings, listening.dup(), stopping, drain_s)


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


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="draftproof front-door", description=__doc__)
    parser.add_argument(
        "--front-door", type=Path, required=True, help="YAML file with the servers and the other settings"
    )
    parser.add_argument("--openai-port", type=int, help="(default: $DRAFTPROOF_OPENAI_PORT, else 9000)")
    parser.add_argument(
        "--drain-s",
        type=int,
        default=DRAIN_S,
        help="seconds to wait for running requests at the end (%(default)s)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
