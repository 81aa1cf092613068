"""A running server on the stand-in, and what it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.deploy import Server


@dataclass(frozen=True)
class Served:
    """Attributes: server: it runs. directory: its run directory, with ``engines/``."""

    server: Server
    directory: Path

    def requests(self, role: str) -> list[dict[str, Any]]:
        """What a model was asked so far, and what was cancelled."""
        path = self.directory.parent / "engines" / role / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    @contextmanager
    def asked(self, role: str) -> Iterator[list[dict[str, Any]]]:
        """Gathers what a model is asked inside the block, filled at its end."""
        before = len(self.requests(role))
        found: list[dict[str, Any]] = []
        yield found
        found += self.requests(role)[before:]

    @contextmanager
    def fault(self, role: str, word: str) -> Iterator[None]:
        """Let an engine fail inside the block."""
        with self._said(role, "fault", word):
            yield

    @contextmanager
    def step_s(self, role: str, seconds: float) -> Iterator[None]:
        """Let an engine's steps take so long inside the block."""
        with self._said(role, "step_s", str(seconds)):
            yield

    @contextmanager
    def _said(self, role: str, name: str, word: str) -> Iterator[None]:
        path = self.directory.parent / "engines" / role / name
        path.write_text(word)
        try:
            yield
        finally:
            path.unlink()
