"""Tests of traces: a collector reads what the front door of a running server sends."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pipelines.deploy.server import Server
from pipelines.front_door.observing.traces import ENDPOINT, Traces
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL, openai_client

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed; make otel installs it")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

pytestmark = pytest.mark.triton

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Receives spans over HTTP, as a collector does.

    Attributes:
        url: Its address.
        spans: Every span that arrived.
        services: Name of the service of each export.
    """

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.services.append(values(resource.resource)["service.name"])
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def values(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(each) for each in value.array_value.values]
        return getattr(value, kind)

    return {each.key: plain(each.value) for each in holder.attributes}


@pytest.fixture(scope="module")
def traced(
    new_door: Callable[..., AbstractContextManager[Server]],
) -> Iterator[tuple[Server, Collector]]:
    collector = Collector()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ENDPOINT, collector.url)
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        patched.setenv("NO_PROXY", "127.0.0.1")
        with new_door("{}") as server:
            yield server, collector
    collector.close()


def test_a_request_is_a_span_in_the_caller_s_trace_with_its_answers_below(
    traced: tuple[Server, Collector],
) -> None:
    server, collector = traced
    with openai_client(server) as api:
        stream = api.completions.create(
            model=MODEL,
            prompt="def area(",
            max_tokens=60,
            temperature=0.0,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
        )
        *_, last = stream
    assert last.usage is not None
    name = f"text_completion {MODEL}"
    assert wait_until(lambda: bool(collector.named(name)) and bool(collector.named("router")))
    [span], [answer] = collector.named(name), collector.named("router")
    assert set(collector.services) == {"draftproof"}
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert (answer.trace_id, answer.parent_span_id) == (span.trace_id, span.span_id)
    assert span.start_time_unix_nano <= answer.start_time_unix_nano < answer.end_time_unix_nano
    assert answer.end_time_unix_nano <= span.end_time_unix_nano
    about = values(span)
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 60,
        "gen_ai.request.seed": 5,
        "gen_ai.usage.input_tokens": last.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": last.usage.completion_tokens,
        "gen_ai.response.finish_reasons": ["length"],
        "http.response.status_code": 200,
        "http.route": "/v1/completions",
    }
    assert {key: about[key] for key in expected} == expected
    assert 0 < about["gen_ai.response.time_to_first_chunk"] < 60
    rounds = values(answer)
    assert rounds["draftproof.arm"] == "stable"
    assert sum(rounds["draftproof.drafted_per_round"]) == rounds["draftproof.draft_tokens"] > 0
    assert rounds["draftproof.num_rounds"] == len(rounds["draftproof.drafted_per_round"])
    chunks = [values(event) for event in answer.events]
    assert [event.name for event in answer.events] == ["chunk"] * len(chunks)
    tokens = [chunk["draftproof.output_tokens"] for chunk in chunks]
    assert min(tokens) > 0 and sum(tokens) == about["gen_ai.usage.output_tokens"]
    accepted = sum(chunk["draftproof.accepted_draft_tokens"] for chunk in chunks)
    assert accepted == rounds["draftproof.accepted_draft_tokens"]
    times = [event.time_unix_nano for event in answer.events]
    assert times == sorted(times)
    assert answer.start_time_unix_nano <= times[0] and times[-1] <= answer.end_time_unix_nano
    assert "area" not in str(collector.spans)


def test_a_refused_request_is_an_error_without_answers(traced: tuple[Server, Collector]) -> None:
    server, collector = traced
    with openai_client(server) as api, pytest.raises(Exception, match="no model of this name"):
        api.chat.completions.create(model="another", messages=[{"role": "user", "content": "a"}])
    assert wait_until(lambda: bool(collector.named(f"chat {MODEL}")))
    [span] = collector.named(f"chat {MODEL}")
    assert (values(span)["error.type"], values(span)["http.response.status_code"]) == ("model_not_found", 404)
    assert span.status.code == span.status.STATUS_CODE_ERROR
    assert not [each for each in collector.named("router") if each.parent_span_id == span.span_id]


def test_the_operator_s_name_of_the_service_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    traces = Traces(MODEL)
    assert traces._provider.resource.attributes["service.name"] == "ours"
    traces.close()
