"""Tests of traces: a collector reads what the front door of a running server sends."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.deploy.server import Server
from pipelines.front_door.observing.traces import Traces
from tests.integration.conftest import wait_until
from tests.integration.front_door.conftest import MODEL, openai_client

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed; make otel installs it")
from tests.support.trace_collector import Collector, values

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door impatient")]

PARENT = "b7ad6b7169203331"


def test_a_request_is_a_span_in_the_caller_s_trace_with_its_answers_below(
    impatient: Server, collector: Collector
) -> None:
    trace, name = "0af7651916cd43dd8448eb211c80319c", f"text_completion {MODEL}"
    with openai_client(impatient) as api:
        *_, last = api.completions.create(
            model=MODEL,
            prompt="def area(",
            max_tokens=60,
            temperature=0.0,
            seed=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"traceparent": f"00-{trace}-{PARENT}-01"},
        )
    assert last.usage is not None
    assert wait_until(lambda: {name, "router"} <= set(collector.trace(trace)))
    span, answer = collector.trace(trace)[name], collector.trace(trace)["router"]
    assert set(collector.services) == {"draftproof"}
    assert (span.parent_span_id.hex(), answer.parent_span_id) == (PARENT, span.span_id)
    about, rounds = values(span), values(answer)
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
    assert rounds["draftproof.arm"] == "stable"
    assert sum(rounds["draftproof.drafted_per_round"]) == rounds["draftproof.draft_tokens"] > 0
    assert rounds["draftproof.num_rounds"] == len(rounds["draftproof.drafted_per_round"])
    assert {event.name for event in answer.events} == {"chunk"}
    chunks: list[dict[str, Any]] = list(map(values, answer.events))
    assert sum(each["draftproof.output_tokens"] for each in chunks) == about["gen_ai.usage.output_tokens"]
    accepted = sum(each["draftproof.accepted_draft_tokens"] for each in chunks)
    assert accepted == rounds["draftproof.accepted_draft_tokens"]
    times = [span.start_time_unix_nano, answer.start_time_unix_nano]
    times += [event.time_unix_nano for event in answer.events]
    times += [answer.end_time_unix_nano, span.end_time_unix_nano]
    assert times == sorted(times)
    assert "area" not in str(collector.spans)


def test_a_refused_request_is_an_error_without_answers(impatient: Server, collector: Collector) -> None:
    trace = "1" * 32
    with openai_client(impatient) as api, pytest.raises(Exception, match="n=1000"):
        api.chat.completions.create(
            model=MODEL,
            n=1000,
            messages=[{"role": "user", "content": "a"}],
            extra_headers={"traceparent": f"00-{trace}-{PARENT}-01"},
        )
    assert wait_until(lambda: bool(collector.trace(trace)))
    [(name, span)] = collector.trace(trace).items()
    assert name == f"chat {MODEL}"
    assert (values(span)["error.type"], values(span)["http.response.status_code"]) == ("invalid_request", 400)
    assert span.status.code == span.status.STATUS_CODE_ERROR


def test_the_operator_s_name_of_the_service_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    traces = Traces(MODEL)
    assert traces._provider.resource.attributes["service.name"] == "ours"
    traces.close()
