"""Runs one server: the gateway in this process and the Triton that it starts.

``draftproof serve`` starts it in the background; containers run it as their main process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop
from pydantic import TypeAdapter

from pipelines.deploy.ports import Endpoint
from pipelines.deploy.triton.place import TritonPlace
from pipelines.program import EXIT_PASS, run_program
from pipelines.triton.supervision.guard import start_guard
from pipelines.triton.supervision.triton_process import TritonProcess


def main() -> int:
    """Run the server; returns 0 after SIGTERM or SIGINT, 1 if it cannot start or keeps crashing.

    Its arguments are those of ``deploy/triton/command.py``: a run directory, and an ``Endpoint`` as JSON.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each client of a burst needs a file descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    os.umask(0o077)  # logs, observations and sockets reveal requests
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stdout
    )

    def work() -> int:
        directory, settings = sys.argv[1:]
        uvloop.run(run(Path(directory).resolve(), TypeAdapter(Endpoint).validate_json(settings)))
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
        process = TritonProcess.start(directory, place, endpoint)
        running.push_async_callback(process.clear)
        # Only now, so that Triton starts while this process imports aiohttp, grpc and numpy.
        from pipelines.triton.gateway.serving import serve

        await serve(directory, endpoint, place, process, stopping, reloading)


if __name__ == "__main__":
    sys.exit(main())
