"""Tests of ``python -m pipelines.deploy run``, the command of every container, on a real Triton."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy.ports import Endpoint, Ports
from pipelines.deploy.server import Server
from pipelines.deploy.triton.command import gateway_command
from pipelines.deploy.triton.place import prefix_of
from pipelines.process import ProcessIdentity, processes_with
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import grpc_client, wait_until

pytestmark = pytest.mark.triton

TRITON_WAS_TOO_SLOW = "Exit timeout expired. Exiting immediately."


@contextmanager
def foreground(directory: Path, exit_timeout_s: int) -> Iterator[tuple[subprocess.Popen[bytes], Server]]:
    """Run a container's command, and kill it at the end if it still runs."""
    ports = Ports.free()
    command = [sys.executable, "-m", "pipelines.deploy", "run", str(directory), "--address", "0.0.0.0"]
    command += ["--exit-timeout-s", str(exit_timeout_s)]
    command += [text for name, port in asdict(ports).items() for text in (f"--{name}-port", str(port))]
    with (directory / "foreground.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=log, stderr=subprocess.STDOUT)
    try:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        yield process, Server(directory, ports, identity)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "exit_timeout_s", [pytest.param(10, id="in time"), pytest.param(0, id="too slow", marks=pytest.mark.long)]
)
def test_the_process_of_a_container_is_the_server_and_ends_well(
    exit_timeout_s: int, render: Callable[..., Path]
) -> None:
    """Triton itself exits with 1 if its models unload too slowly, as on a busy machine."""
    directory = render("tiny-foreground", "router")
    with foreground(directory, exit_timeout_s) as (process, server):
        server.wait_ready()
        live = f"http://127.0.0.1:{server.ports.http}/v2/health/live"
        with urllib.request.urlopen(live, timeout=120) as response:
            assert response.status == 200
        with grpc_client(server) as client:
            assert client.generate(CompletionRequest("def main(", max_tokens=4)).output_ids
        process.terminate()
        assert process.wait(120) == 0
    if exit_timeout_s == 0:
        assert TRITON_WAS_TOO_SLOW in (directory / "foreground.log").read_text()


def test_a_container_that_is_told_to_end_while_it_loads_ends_well(render: Callable[..., Path]) -> None:
    directory = render("tiny-foreground", "router")
    with foreground(directory, 10) as (process, _):
        log = directory / "foreground.log"
        assert wait_until(lambda: "loading" in log.read_text()), "Triton begins to load its models"
        process.terminate()
        assert process.wait(120) == 0


def test_a_gateway_whose_port_is_taken_ends_with_its_triton(render: Callable[..., Path]) -> None:
    """Triton is started before the gateway listens."""
    directory = render("tiny-foreground", "router")
    with socket.create_server(("0.0.0.0", 0)) as taken:
        ports = replace(Ports.free(), grpc=taken.getsockname()[1])
        command = gateway_command(directory, Endpoint(ports)).arguments
        ended = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "a port cannot be listened on" in ended.stderr
    assert not [*processes_with(prefix_of(directory))]
