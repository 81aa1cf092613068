"""Tests of a front door whose process dies or hangs: it is replaced, and nobody else notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import httpx
import pytest

from pipelines.client import CompletionRequest
from pipelines.deploy.server import Server
from pipelines.deploy.triton.place import prefix_of
from pipelines.process import ProcessIdentity, processes_with
from tests.integration.conftest import grpc_client, read_gauge, wait_until
from tests.integration.front_door.conftest import UNREAD, post, url_of

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door impatient")]


def front_door(server: Server) -> ProcessIdentity:
    """Return the process of the front door."""
    [process] = [
        process
        for process, command in processes_with(str(server.directory))
        if b"pipelines.front_door" in command
    ]
    return process


def is_healthy(server: Server) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{url_of(server)}/health", timeout=1, trust_env=False).status_code == 200
    return False


def gauge(server: Server, name: str) -> float:
    return read_gauge(server, f"draftproof_front_door_{name}")


def num_restarts(server: Server) -> float:
    return gauge(server, "restarts_total")


def test_a_process_that_is_killed_is_replaced(impatient: Server) -> None:
    before, killed = num_restarts(impatient), front_door(impatient)
    url = f"{url_of(impatient)}/v1/completions"
    with httpx.stream("POST", url, json=UNREAD, timeout=120, trust_env=False) as streamed:
        lines = streamed.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):  # the end of the chunks is missing
            list(lines)
    # Waits in the listening socket, which the gateway owns, until there is a process again.
    assert post(impatient, "/v1/completions", {"prompt": "a", "max_tokens": 2}).status_code == 200
    assert front_door(impatient) != killed
    assert num_restarts(impatient) == before + 1
    assert wait_until(lambda: gauge(impatient, "answers") == 1)


def test_clients_of_other_protocols_do_not_notice(impatient: Server) -> None:
    request = CompletionRequest("def f(", max_tokens=64, seed=3, temperature=1.0, end_id=-1)
    with grpc_client(impatient) as client:
        expected = client.generate(request, "router").output_ids
        with client.stream(request, "router") as stream:
            next(stream)
            os.kill(front_door(impatient).pid, signal.SIGKILL)
            assert stream.result().output_ids == expected
    assert wait_until(lambda: is_healthy(impatient))


def test_a_gateway_that_is_killed_leaves_neither_processes_nor_shared_memory(
    new_door: Callable[..., AbstractContextManager[Server]],
) -> None:
    """The front door ends them, so a server with one has no process for that."""
    with new_door() as server:
        prefix = prefix_of(server.directory)
        processes = [process for process, _ in processes_with(prefix)]
        models = list(server.directory.glob("model_repository/*/1/model.py"))
        assert len(processes) == 1 + len(models), "Triton and one for each model"
        of_openai = front_door(server)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert len(children) == 2, "the front door and Triton"
        assert len([server.process, of_openai, *processes]) <= 7
        os.kill(server.process.pid, signal.SIGKILL)
        assert wait_until(lambda: not any(each.is_alive for each in (of_openai, *processes)))
        assert wait_until(lambda: not list(Path("/dev/shm").glob(f"{prefix}*")))
