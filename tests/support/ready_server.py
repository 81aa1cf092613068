"""Runs a server for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server


@contextmanager
def ready_server(
    directory: Path, *, with_openai: bool = False, front_door: Path | None = None
) -> Iterator[Server]:
    """Run a server of a run directory, ready at the beginning of the block and killed at its end.

    The front door is a process of its own, which only its tests start; ``front_door`` has its settings.

    Triton takes 4 to 10 seconds to unload its models, which most tests do not wait for. The orderly stop has
    its own tests: ``test_a_server_that_is_stopped_under_streams_ends_in_good_order`` and
    ``tests/integration/test_foreground.py``.
    """
    server = Server.start(directory, Ports.free(with_openai=with_openai), front_door=front_door)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop(kill_after_s=0)
