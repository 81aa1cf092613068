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
from pipelines.errors import DraftproofError, ServerStartError, ServerUnavailableError
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
    with local_server(recipe) as server, known_key(server.directory):
        yield f"grpc://{HOST}:{server.ports.grpc}"


@contextmanager
def local_server(recipe: str, *, with_openai: bool = False) -> Iterator[Server]:
    """Yield the server of a recipe that runs on this machine, or one that runs during the block.

    Args:
        recipe: The recipe; engines and repository of a new server are built if they do not exist.
        with_openai: Whether it must answer OpenAI's API.

    Raises:
        ServerStartError: The server did not become ready, or does not answer OpenAI's API.
    """
    directory = run_directory(recipe)
    served = Server.running(directory)
    if served is not None:
        print(f"using the running server of recipe {recipe}", file=sys.stderr)
        if with_openai and not served.ports.openai:
            raise ServerStartError(
                f"the server of {recipe} does not answer OpenAI's API", "serve it with --openai-port"
            )
        served.wait_ready()
        yield served
        return
    build_recipe("build.repository", recipe, report=lambda line: print(line, file=sys.stderr, flush=True))
    ports = Ports.free(with_openai=with_openai)
    with stopped_by_signals(), Server.start(directory, ports) as server:
        print(f"starting a server; log {server.log}", file=sys.stderr, flush=True)
        server.wait_ready()
        yield server


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
