"""Runs a front door that belongs to no server, for tests of a fleet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipelines.deploy.triton.install import REPOSITORY_ROOT

_STARTS_WITHIN_S = 120.0  # on a busy machine
_NOBODY = "127.0.0.1:9"


@dataclass(frozen=True)
class FrontDoorAlone:
    """A running front door.

    Attributes:
        url: Where it listens.
        log: What it writes.
        process: Its process.
    """

    url: str
    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def front_door_alone(directory: Path, folder: Path, servers: Sequence[str]) -> Iterator[FrontDoorAlone]:
    """Run a front door of a fleet, healthy at the beginning of the block and killed at its end.

    Args:
        directory: Run directory with a rendered repository of the pair.
        folder: For its settings and its log.
        servers: ``host:port`` of the gRPC server of each server.
    """
    settings, log = folder / "front_door.yaml", folder / "front_door.log"
    settings.write_text(json.dumps({"servers": list(servers)}), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as listening, log.open("wb") as output:
        number, port = listening.fileno(), listening.getsockname()[1]
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pipelines.front_door", str(directory), "--fd", str(number)),
                *("--gateway", _NOBODY, "--metrics", _NOBODY, "--settings", str(settings)),
            ],
            cwd=REPOSITORY_ROOT,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY_ROOT)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(number,),
        )
        running = FrontDoorAlone(f"http://127.0.0.1:{port}", log, process)
        try:
            _wait_healthy(running)
            yield running
        finally:
            process.kill()
            process.communicate()


def _wait_healthy(door: FrontDoorAlone) -> None:
    deadline_s = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline_s and door.process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{door.url}/health", timeout=120, trust_env=False).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the front door is not healthy:\n{door.log.read_text()[-3000:]}")
