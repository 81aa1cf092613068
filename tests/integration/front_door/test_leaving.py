"""Tests of clients that leave, read nothing, or send slowly: they hold nothing, and hold up nobody."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from pipelines.deploy.server import Server
from tests.integration.conftest import MAX_BATCH_SIZE, MAX_QUEUE_SIZE, read_gauge, wait_until
from tests.integration.front_door.conftest import post, url_of
from tests.integration.test_disconnects import all_blocks_are_free, is_busy

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door impatient")]

LONG: dict[str, Any] = {"prompt": "def f(", "max_tokens": 480, "ignore_eos": True, "seed": 1}


def num_whole(server: Server) -> float:
    return read_gauge(server, "vllm:request_time_per_output_token_seconds_count")


@pytest.mark.parametrize("n", [1, 4])
def test_a_client_that_leaves_a_stream_frees_its_places(impatient: Server, n: int) -> None:
    def leave() -> bool:
        """Leave a stream; return False if the server had answered it before."""
        before = num_whole(impatient)
        body = {**LONG, "stream": True, "n": n}
        with httpx.stream(
            "POST", f"{url_of(impatient)}/v1/completions", json=body, timeout=120, trust_env=False
        ) as streamed:
            next(streamed.iter_lines())
        assert wait_until(lambda: all_blocks_are_free(impatient))
        assert post(impatient, "/v1/completions", {"prompt": "a", "max_tokens": 8}).status_code == 200
        assert wait_until(lambda: num_whole(impatient) > before)
        return num_whole(impatient) == before + 1

    assert any(leave() for _ in range(20))


def test_a_client_that_leaves_before_its_answer_frees_its_place(impatient: Server) -> None:
    def leave() -> bool:
        before = num_whole(impatient)
        with socket.create_connection(("127.0.0.1", impatient.ports.openai)) as client:
            client.sendall(http_post(json.dumps({**LONG, "n": 4}).encode()))
            was_busy = wait_until(lambda: is_busy(impatient), timeout_s=2)
        assert wait_until(lambda: all_blocks_are_free(impatient))
        return was_busy and num_whole(impatient) < before + 4

    assert any(leave() for _ in range(20))


def http_post(body: bytes, length: int | None = None) -> bytes:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"", b""),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", b""),
        (http_post(b'{"prompt"', length=50), b"HTTP/1.1 408"),
    ],
    ids=["nothing", "half of the headers", "half of the body"],
)
def test_slow_senders_are_cut_off(impatient: Server, sent: bytes, received: bytes) -> None:
    with socket.create_connection(("127.0.0.1", impatient.ports.openai), timeout=120) as client:
        client.sendall(sent)
        assert client.recv(12) == received


def test_a_body_that_is_too_large_is_refused(impatient: Server) -> None:
    refused = post(impatient, "/v1/completions", {"prompt": "a" * 100_001})
    assert refused.status_code == 413 and "100000 bytes" in refused.json()["error"]["what"]


def test_more_answers_than_the_server_takes_are_refused_as_invalid(impatient: Server) -> None:
    limit = MAX_BATCH_SIZE + MAX_QUEUE_SIZE
    body = {"prompt": "a", "max_tokens": 2}
    refused = post(impatient, "/v1/completions", {**body, "n": limit + 1})
    assert refused.status_code == 400
    assert f"at most {limit} " in refused.json()["error"]["what"]
    assert len(post(impatient, "/v1/completions", {**body, "n": limit}).json()["choices"]) == limit
