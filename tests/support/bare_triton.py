"""Triton alone, over HTTP, without our gateway: for what its own loader says about a model repository."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Ask = Callable[[str], Any]

_START_S = 120.0


def options(backends: Path, port: int) -> list[str]:
    """Options of ``tritonserver`` for a test: one port, and shared memory of its own."""
    return [
        f"--backend-directory={backends}",
        "--http-address=127.0.0.1",
        f"--http-port={port}",
        "--allow-grpc=false",
        "--allow-metrics=false",
        "--exit-timeout-secs=5",
        f"--backend-config=python,shm-region-prefix-name=bare_{port}_",
    ]


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str], port: int, log: Path) -> Iterator[Ask]:
    """Run a command that starts Triton, until every model is loaded.

    Yields:
        Asks for a path below ``/v2/`` and returns the JSON, None if the answer is empty.

    Raises:
        AssertionError: It ended, or is not ready in time; the message is its log.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT)

    def ask(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/{path}", timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    try:
        end = time.monotonic() + _START_S
        while not _is_ready(ask):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield ask
    finally:
        server.terminate()
        server.wait(120)


def _is_ready(ask: Ask) -> bool:
    try:
        ask("health/ready")
    except urllib.error.URLError:
        return False
    return True
