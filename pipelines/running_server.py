"""The server that verify and bench ask: the one that is named, or one of their own."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.client import Client
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.errors import DraftproofError, ServerUnavailableError


@contextmanager
def running_server(url: str, recipe: str) -> Iterator[str]:
    """Yield the address of a ready server; one that was started here is stopped at the end.

    Args:
        url: Address of a running server; empty for the one that ``make serve`` started, and if there is
            none for one of our own on free ports.
        recipe: Whose rendered repository is served if one is started.

    Raises:
        ServerUnavailableError: The named server is not ready.
        ServerStartError: The server did not become ready.
    """
    if url:
        with Client.connect(url) as client:
            if not client.is_ready():
                raise ServerUnavailableError(
                    "the server is not ready",
                    values=url,
                    limit="all models must be loaded",
                    remedy="start it with 'make serve', or leave the address out",
                )
        yield url
        return
    directory = run_directory(recipe)
    served = Server.running(directory)
    if served is not None:
        print(f"using the running server of recipe {recipe}", file=sys.stderr)
        served.wait_ready()
        yield _address(served)
        return
    with stopped_by_signals(), Server.start(directory, Ports.free()) as server:
        print(f"starting a server; log {server.log}", file=sys.stderr, flush=True)
        server.wait_ready()
        yield _address(server)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that what it started is stopped."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears signals
        return
    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _address(server: Server) -> str:
    return f"grpc://{HOST}:{server.ports.grpc}"


def engine_directories(client: Client) -> dict[str, Path]:
    """Role -> engine directory, as the server's configuration names them.

    They exist here only if the server runs on this machine; empty if the server does not say.
    """
    try:
        parameters = client.model_parameters("speculative")
    except DraftproofError:
        return {}
    return {
        role: Path(parameters[f"{role}_engine_dir"])
        for role in ("draft", "target")
        if f"{role}_engine_dir" in parameters
    }
