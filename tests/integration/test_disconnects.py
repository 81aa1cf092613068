"""Tests of clients that disconnect, full queues and dying servers: no client hangs and nothing leaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError
from tests.integration.conftest import (
    MAX_BATCH_SIZE,
    MAX_QUEUE_SIZE,
    grpc_client,
    read_gauge,
    wait_until,
)

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]


def num_free_blocks(server: Server, model: str, engine: str) -> float:
    return read_gauge(server, "draftproof_kv_blocks_free", model=model, engine=engine)


def all_blocks_are_free(server: Server) -> bool:
    model = "speculative"
    return all(
        num_free_blocks(server, model, engine)
        == read_gauge(server, "draftproof_kv_blocks", model=model, engine=engine)
        for engine in ("draft", "target")
    ) and not read_gauge(server, "draftproof_requests_running", model=model, engine="target")


def is_busy(server: Server) -> bool:
    running = read_gauge(server, "draftproof_requests_running", model="speculative")
    return running > 0 or not all_blocks_are_free(server)


@pytest.mark.parametrize("model", ["generate", "generate_target"])
def test_a_client_that_leaves_a_stream_gives_its_blocks_back(
    client: Client, server: Server, model: str
) -> None:
    def num_whole() -> float:
        return read_gauge(server, "vllm:request_time_per_output_token_seconds_count")

    def leave() -> bool:
        """Leave a stream; return False if the server had answered it before."""
        before = num_whole()
        with client.stream(CompletionRequest("def f(", max_tokens=450, end_id=-1), model) as stream:
            next(stream)
        assert wait_until(lambda: all_blocks_are_free(server))
        assert client.stream(CompletionRequest("def main(", max_tokens=8, end_id=-1), model).result().text
        assert wait_until(lambda: num_whole() > before)
        return num_whole() == before + 1

    assert any(leave() for _ in range(30))


def test_a_client_that_leaves_the_queue_is_noticed_while_it_waits(client: Client, server: Server) -> None:
    def num_waiting() -> float:
        return read_gauge(server, "draftproof_requests_waiting", model="speculative", engine="pair")

    def leave_the_queue() -> bool:
        """Cancel a waiting request; return False if a fast machine had answered the others before."""
        streams = [client.stream(CompletionRequest("def f(", max_tokens=480, end_id=-1)) for _ in range(5)]
        for stream in streams[:MAX_BATCH_SIZE]:
            next(stream)
        was_waiting = wait_until(lambda: num_waiting() == 1, timeout_s=0.5)
        streams.pop().close()
        left = wait_until(lambda: num_waiting() == 0, timeout_s=2)
        others_run = read_gauge(server, "draftproof_requests_running", model="speculative", engine="pair") > 0
        for stream in streams:
            stream.close()
        assert wait_until(lambda: all_blocks_are_free(server))
        return was_waiting and left and others_run

    assert any(leave_the_queue() for _ in range(10))


def test_a_server_that_is_stopped_under_streams_ends_in_good_order(render: Callable[..., Path]) -> None:
    """Clients ask until they get an error; no call may keep Triton from unloading its model."""
    patience_s = 30  # unloading is slow on a busy machine; a blocked model would never unload
    server = Server.start(render("tiny-stopped", "router"), Ports.free(), exit_timeout_s=patience_s)
    refusals: list[str] = []

    def ask(client: Client) -> None:
        while True:
            try:
                client.stream(CompletionRequest("def f(", max_tokens=64, end_id=-1)).result()
            except DraftproofError as error:
                refusals.append(str(error))
                return

    with ExitStack() as stack:
        stack.callback(server.stop)
        server.wait_ready()
        clients = [stack.enter_context(grpc_client(server)) for _ in range(MAX_BATCH_SIZE + MAX_QUEUE_SIZE)]
        with ThreadPoolExecutor(len(clients)) as pool:
            asking = [pool.submit(ask, client) for client in clients]
            time.sleep(1)
            assert not refusals
            assert server.stop(kill_after_s=patience_s + 15)
            for each in asking:
                each.result()
    assert len(refusals) == len(clients)
    log = server.log.read_text(encoding="utf-8", errors="replace")
    assert "Exit timeout expired" not in log, log[-2000:]
