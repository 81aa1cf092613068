"""``python -m pipelines.deploy run``, which every container of a deployment runs, on a real Triton."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from build.recipe import REPOSITORY_ROOT
from pipelines.client import CompletionRequest
from pipelines.deploy import Ports, Server
from pipelines.deploy.endpoint import Endpoint
from pipelines.deploy.process import ProcessIdentity
from tests.integration.conftest import grpc_client

pytestmark = pytest.mark.triton


def test_the_process_of_a_container_is_the_server(render: Callable[[str, str], Path]) -> None:
    directory, ports = render("tiny-foreground", "in_process"), Ports.free()
    command = [sys.executable, "-m", "pipelines.deploy", "run", str(directory)]
    with (directory / "foreground.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *Endpoint(ports, "0.0.0.0").options()],
            cwd=REPOSITORY_ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        server = Server(directory, ports, identity)
        server.wait_ready()
        live = f"http://127.0.0.1:{ports.http}/v2/health/live"
        with urllib.request.urlopen(live, timeout=5) as response:
            assert response.status == 200
        with grpc_client(server) as client:
            assert client.generate(CompletionRequest("def main(", max_tokens=4)).output_ids
    finally:
        process.terminate()
    assert process.wait(30) == 0
