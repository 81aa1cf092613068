"""The server that verify and bench ask: the one that is named, or one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.client import Client
from pipelines.errors import DraftproofError, ServerUnavailableError


@contextmanager
def running_server(url: str, recipe: str) -> Iterator[str]:
    """Yield the address of a ready server; one that was started here is stopped at the end.

    Args:
        url: Address of a running server; empty to start one on free ports.
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
    raise NotImplementedError


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
