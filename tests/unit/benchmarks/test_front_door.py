"""Tests of what is measured of OpenAI's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

import pytest

from benchmarks import front_door as cost
from benchmarks.completions_client import CompletionsClient
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import CompletionRequest, Generation
from pipelines.client.workers import Workers
from pipelines.errors import VerificationError
from tests.unit.bench.answers import answer

PROMPTS = tuple(CompletionRequest(f"text {number}", seed=number) for number in range(32))


def ask(request: CompletionRequest, model: str) -> Generation:
    added_s = 0.25 if model == cost.OPENAI.model else 0.0
    return answer(ttft=1.0 + added_s, e2e=3.0 + added_s, text=request.prompt)


def test_both_ways_are_compared_and_the_cpu_time_is_that_of_the_front_door() -> None:
    workers = Workers([ask] * max(cost.CONCURRENCY))
    found = cost.measure(PromptSet("code", PROMPTS), 2, workers, count(0, 1e-3).__next__)
    assert found.ttft.added_ms.value == pytest.approx(250)
    assert found.itl.added_ms.value == pytest.approx(0)
    assert [load.num_at_once for load in found.loads] == [8, 16]
    assert [load.cpu_us_per_token for load in found.loads] == [
        pytest.approx(1e3 / (5 * 2 * num_at_once)) for num_at_once in (8, 16)
    ]
    assert found.num_different == 0
    assert "| first token | 1000.00 ms | 1250.00 ms | 250.00 (250.00 to 250.00) ms |" in cost.table(found)


def test_another_text_over_one_way_is_counted() -> None:
    def other(request: CompletionRequest, model: str) -> Generation:
        return replace(ask(request, model), text=model)

    found = cost.measure(PromptSet("code", PROMPTS), 2, Workers([other] * 16), count(0, 1e-3).__next__)
    assert found.num_different == 2 * (32 + 16 + 32)


EVENTS: list[dict[str, Any]] = [
    {"choices": [{"text": "a", "finish_reason": None}]},
    {"choices": [{"text": "b", "finish_reason": "length"}]},
    {"choices": [], "usage": {"completion_tokens": 3}},
]


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Serve a stream of events, all but as many of the last as the parameter says."""
    events = EVENTS[: len(EVENTS) - request.param]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.block_on_close = False  # a connection that stays open must not hold the test
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("port", [0], indirect=True)
def test_the_client_joins_the_events_of_a_stream(port: int) -> None:
    client = CompletionsClient("127.0.0.1", port)
    for _ in range(2):  # over one connection
        found = client.generate(PROMPTS[0])
        assert (found.text, found.num_output_tokens, found.finish_reason) == ("ab", 3, "length")
    client.close()


@pytest.mark.parametrize("port", [1, 2], indirect=True)
def test_a_stream_without_its_end_is_an_error(port: int) -> None:
    client = CompletionsClient("127.0.0.1", port)
    with pytest.raises(VerificationError):
        client.generate(PROMPTS[0])
    client.close()
