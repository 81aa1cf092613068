"""Runs one server: the gateway in this process and the Triton that it starts.

``draftproof serve`` starts it in the background; containers run it as their main process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop

from pipelines.deploy.ports import DRAIN_S, EXIT_TIMEOUT_S, HOST, PORTS, Endpoint, Ports
from pipelines.deploy.triton.command import triton_command
from pipelines.deploy.triton.place import TritonPlace
from pipelines.program import EXIT_PASS, run_program
from pipelines.triton.supervision.guard import start_guard
from pipelines.triton.supervision.triton_process import TritonProcess


def main(arguments: list[str] | None = None) -> int:
    """Run the server; returns 0 after SIGTERM or SIGINT, 1 if it cannot start or keeps crashing."""
    options = _parse(arguments)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most_files, most_files)
    )  # each client of a burst needs a file descriptor
    os.umask(0o077)  # logs, observations and sockets reveal requests
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout
    )
    ports = Ports(**{name: getattr(options, f"{name}_port") for name in PORTS})
    endpoint = Endpoint(ports, options.address, options.exit_timeout_s, options.drain_s, options.front_door)

    def work() -> int:
        uvloop.run(run(options.directory.resolve(), endpoint))
        return EXIT_PASS

    return run_program(work)


async def run(directory: Path, endpoint: Endpoint) -> None:
    """Run one server until this process receives a signal to stop.

    At SIGHUP it loads the models of its repository again, which may be those of another pair by then.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        endpoint: Addresses for clients.

    Raises:
        ServerStartError: The server cannot be started.
    """
    stopping, reloading = asyncio.Event(), asyncio.Event()
    for number, event in (
        (signal.SIGTERM, stopping),
        (signal.SIGINT, stopping),
        (signal.SIGHUP, reloading),
    ):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    place = TritonPlace.make(directory)
    async with contextlib.AsyncExitStack() as running:
        if not endpoint.ports.openai:  # otherwise the front door is the guard
            guard = start_guard(place.shared_memory_prefix)
            running.callback(guard.communicate)  # closes its standard input
        process = TritonProcess(triton_command(directory, place, endpoint), place)
        running.push_async_callback(process.clear)
        # Only now, so that Triton starts while this process imports aiohttp, grpc and numpy.
        from pipelines.triton.gateway.serving import serve

        await serve(directory, endpoint, place, process, stopping, reloading)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.triton.gateway", description=__doc__)
    parser.add_argument("directory", type=Path, help="run directory with a rendered repository")
    default = Ports()
    for name in PORTS:
        parser.add_argument(f"--{name}-port", type=int, default=getattr(default, name), help="(%(default)s)")
    parser.add_argument("--address", default=HOST, help="address to listen on (%(default)s)")
    parser.add_argument(
        "--exit-timeout-s", type=int, default=EXIT_TIMEOUT_S, help="for the models, at the end"
    )
    parser.add_argument("--drain-s", type=int, default=DRAIN_S, help="for requests in flight, before that")
    parser.add_argument("--front-door", type=Path, help="file with the settings of OpenAI's API")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
