"""Runs the door of a fleet, for tests and drills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipelines.errors import ServerStartError
from pipelines.places import CODE

_STARTS_WITHIN_S = 120.0  # on a busy machine


@dataclass(frozen=True)
class FrontDoorAlone:
    """A running front door."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def front_door_alone(folder: Path, servers: Sequence[str], port: int = 0) -> Iterator[FrontDoorAlone]:
    """Run a front door of a fleet, healthy at the beginning of the block and killed at its end.

    Args:
        servers: ``host:port`` of the gRPC server of each server.
        port: Where it listens; 0 for a free port.

    Raises:
        ServerStartError: It ended, or was not healthy in time.
    """
    with started_front_door(folder, servers, port) as running:
        _wait_healthy(running)
        yield running


@contextmanager
def started_front_door(folder: Path, servers: Sequence[str], port: int = 0) -> Iterator[FrontDoorAlone]:
    """Do the same, but wait only until it listens."""
    file, log = folder / "fleet.yaml", folder / "front_door.log"
    stable = {"name": "fleet", "servers": list(servers)}
    file.write_text(json.dumps({"name": "tests-fleet", "stable": stable}), encoding="utf-8")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*(sys.executable, "-m", "pipelines.upstreams", "--settings", str(file)), *("--port", str(port))],
            cwd=CODE,
            env={**os.environ, "PYTHONPATH": str(CODE)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield FrontDoorAlone(_url_in(log, process), log, process)
        finally:
            process.kill()
            process.wait()


def _url_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until the front door has said where it listens."""
    deadline_s = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if found := re.search(r"listening on (\S+)\n", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise _failure("does not listen", log)


def _wait_healthy(door: FrontDoorAlone) -> None:
    deadline_s = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline_s and door.process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{door.url}/health", timeout=120, trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    raise _failure("is not healthy", door.log)


def _failure(what: str, log: Path) -> ServerStartError:
    return ServerStartError(
        f"a front door {what} within {_STARTS_WITHIN_S:.0f} s: {log.read_text()[-3000:]}",
        "fix the error in its log",
    )
