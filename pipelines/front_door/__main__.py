"""Runs the front door of one server. The gateway starts and supervises it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import threading
from pathlib import Path

import uvloop

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.triton.models import ROUTER, rendered_parameters
from pipelines.deploy.triton.place import read_key
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.own_server import OwnServer
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.serving import log_to_standard_output, serve
from pipelines.program import EXIT_PASS, run_program
from pipelines.triton.supervision.guard import end_with_the_gateway


def main(arguments: list[str] | None = None) -> int:
    """Run the front door; returns 0 after SIGTERM, 1 if it cannot start."""
    options = _parse(arguments)
    log_to_standard_output()

    def work() -> int:
        settings = FrontDoorSettings.read(options.settings)
        directory = options.directory.resolve()
        uvloop.run(_serve(directory, settings, options.metrics, options.fd, options.drain_s))
        return EXIT_PASS

    return run_program(work)


async def _serve(
    directory: Path, settings: FrontDoorSettings, metrics_address: str, listening: int, drain_s: float
) -> None:
    """Serve until this process receives a signal to stop.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        settings: Who may use it, and its limits.
        metrics_address: ``host:port`` of the gateway's metrics.
        listening: File descriptor of the listening socket, which outlives this process.
        drain_s: How long to wait for running requests after the signal.

    Raises:
        ServerStartError: The repository, the API keys or the certificate cannot be read.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    threading.Thread(target=end_with_the_gateway, daemon=True).start()
    model = await asyncio.to_thread(lambda: ServedModel.of(ServedFiles.read(directory)))
    metrics = MetricsPage(model, metrics_address)
    router = OwnServer(model, rendered_parameters(directory, ROUTER), settings.timeout_s)
    metrics.publish(router.metrics)
    found = socket.socket(fileno=listening)
    await serve(model, router, metrics, settings, found, stopping, drain_s, read_key(directory))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.front_door", description=__doc__)
    parser.add_argument("directory", type=Path, help="run directory with a rendered repository")
    parser.add_argument("--metrics", required=True, help="host:port of the gateway's metrics")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the listening socket")
    parser.add_argument("--settings", type=Path, help="YAML file (default: the defaults of each setting)")
    parser.add_argument("--drain-s", type=float, default=0.0, help="for running requests, at the end")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
