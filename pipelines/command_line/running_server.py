"""Find or start the server that verify and bench use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.building import build_recipe
from pipelines.client import Client
from pipelines.client.connection import FILE_VARIABLE
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.deploy.triton.place import KEY_FILE
from pipelines.errors import DraftproofError, ServerUnavailableError
from pipelines.program import stopped_by_signals


@contextmanager
def running_server(url: str, recipe: str) -> Iterator[str]:
    """Yield the address of a ready server, and stop it at the end if it was started here.

    Args:
        url: Address of a running server; "" for the one that ``draftproof serve`` started, or if there is
            none for a new one on free ports.
        recipe: Recipe of a new server; its engines and its repository are built if they do not exist.

    Raises:
        ServerUnavailableError: The named server is not ready.
        ServerStartError: The server did not become ready.
    """
    if url:
        with Client.connect(url) as client:
            if not client.is_ready():
                raise ServerUnavailableError(
                    f"the server at {url} is not ready",
                    "start it with 'draftproof serve', or omit the address",
                )
        yield url
        return
    directory = run_directory(recipe)
    served = Server.running(directory)
    if served is not None:
        print(f"using the running server of recipe {recipe}", file=sys.stderr)
        served.wait_ready()
        with known_key(directory):
            yield _address(served)
        return
    build_recipe("build.repository", recipe, report=lambda line: print(line, file=sys.stderr, flush=True))
    with stopped_by_signals(), Server.start(directory, Ports.free()) as server:
        print(f"starting a server; log {server.log}", file=sys.stderr, flush=True)
        server.wait_ready()
        with known_key(directory):
            yield _address(server)


@contextmanager
def known_key(directory: Path) -> Iterator[None]:
    """Make clients of this process use the key of a server, as its operator."""
    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = str(directory / KEY_FILE)
    try:
        yield
    finally:
        if before is None:
            del os.environ[FILE_VARIABLE]
        else:
            os.environ[FILE_VARIABLE] = before


def _address(server: Server) -> str:
    return f"grpc://{HOST}:{server.ports.grpc}"


def engine_directories(client: Client) -> dict[str, Path]:
    """Return role -> engine directory from the server's configuration.

    The directories exist only if the server runs on this machine. Empty if the configuration is not
    available.
    """
    try:
        parameters = client.model_parameters("speculative")
    except DraftproofError:
        return {}
    return {
        role: Path(parameters[f"{role}_engine_dir"])
        for role in ("draft", "target")
        if parameters.get(f"{role}_engine_dir")  # "" without a draft
    }
