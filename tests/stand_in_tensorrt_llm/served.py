"""A running server on the stand-in, and the requests that its models recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.deploy.server import Server


@dataclass(frozen=True)
class Served:
    """A running server; ``directory``: its run directory, with ``engines/``."""

    server: Server
    directory: Path

    def requests(self, role: str) -> list[dict[str, Any]]:
        """Return the requests a model has received so far, and those cancelled."""
        path = self.directory.parent / "engines" / role / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    @contextmanager
    def asked(self, role: str) -> Iterator[list[dict[str, Any]]]:
        """Collect the requests a model receives within the block; filled at its end."""
        before = len(self.requests(role))
        found: list[dict[str, Any]] = []
        yield found
        found += self.requests(role)[before:]

    @contextmanager
    def failing(self, role: str) -> Iterator[None]:
        """Make an engine fail within the block."""
        path = self.directory.parent / "engines" / role / "fails"
        path.touch()
        try:
            yield
        finally:
            path.unlink()
