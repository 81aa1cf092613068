"""Exports a trace of each request by OpenTelemetry's conventions for generative AI.

Off unless ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; the packages of ``requirements/otel.txt`` are imported only
then. Spans are made when a request has ended, from what was recorded anyway: one for the request, and below
it one for each answer of ``router`` with an event for each chunk and the rounds of speculation as attributes.

Source: github.com/open-telemetry/semantic-conventions-genai, status Development, as in version 0.66b2 of
``opentelemetry-semantic-conventions``.
"""

from __future__ import annotations

import os
from typing import Any

from pipelines.errors import ServerStartError
from pipelines.front_door.observing.exchange import Answer, Exchange

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""OpenTelemetry's variable for the address of a collector, such as ``http://127.0.0.1:4318``."""

_OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
}


def are_wanted() -> bool:
    """Return whether a collector is set."""
    return bool(os.environ.get(ENDPOINT))


class Traces:
    """Sends spans to a collector over HTTP, in batches, on a thread of the exporter.

    Args:
        model_name: Name of the served model.

    Raises:
        ServerStartError: OpenTelemetry is not installed.
    """

    def __init__(self, model_name: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ServerStartError(
                f"{ENDPOINT} is set, and traces need packages that are not installed: {error}",
                f"run 'make otel', or unset {ENDPOINT}",
            ) from None
        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        self._model_name = model_name
        resource = Resource.create()  # from ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES``
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "draftproof"}))
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("draftproof.front_door")

    def close(self) -> None:
        """Send what is left; blocks until it is sent or the collector does not answer."""
        self._provider.shutdown()

    def observe(self, exchange: Exchange) -> None:
        """Record the spans of a request for text that has ended."""
        operation = _OPERATIONS.get(exchange.path)
        if operation is None:
            return
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            self._propagator.extract(exchange.trace_headers),
            self._trace.SpanKind.SERVER,
            self._request_attributes(exchange, operation),
            start_time=exchange.began_unix_ns,
        )
        for answer in exchange.answers:
            self._add_answer(exchange, answer, self._trace.set_span_in_context(span))
        if exchange.error is not None or exchange.status >= 500:
            span.set_attribute("error.type", exchange.error.code if exchange.error else str(exchange.status))
            span.set_status(self._trace.StatusCode.ERROR)
        span.end(_unix_ns(exchange, exchange.ended_s))

    def _add_answer(self, exchange: Exchange, answer: Answer, parent: Any) -> None:
        kind, attributes = self._trace.SpanKind.CLIENT, _answer_attributes(answer)
        span = self._tracer.start_span("router", parent, kind, attributes, start_time=exchange.began_unix_ns)
        for arrival in answer.arrivals:
            tokens = {
                "draftproof.output_tokens": arrival.num_tokens,
                "draftproof.accepted_draft_tokens": arrival.num_accepted,
            }
            span.add_event("chunk", tokens, _unix_ns(exchange, arrival.at_s))
        last_s = answer.last.received_at_s if answer.last else exchange.ended_s
        span.end(_unix_ns(exchange, last_s))

    def _request_attributes(self, exchange: Exchange, operation: str) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "draftproof",
            "gen_ai.request.model": self._model_name,
            "gen_ai.request.stream": exchange.is_streamed,
            "http.request.method": "POST",
            "http.route": exchange.path,
            "http.response.status_code": exchange.status,
            "draftproof.request_id": exchange.request_id,
            "draftproof.client_left": exchange.has_left,
        }
        if not exchange.answers:
            return attributes
        asked = exchange.answers[0].request
        attributes |= {
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.choice.count": len(exchange.answers),
            "gen_ai.request.max_tokens": asked.max_tokens,
            "gen_ai.request.temperature": asked.temperature,
            "gen_ai.request.top_p": asked.top_p,
            "gen_ai.request.top_k": asked.top_k,
            "gen_ai.request.seed": asked.seed,
            "gen_ai.usage.input_tokens": len(asked.prompt_ids),
            "gen_ai.usage.output_tokens": sum(each.num_output_tokens for each in exchange.answers),
            "gen_ai.response.finish_reasons": [exchange.ending(each) for each in exchange.answers],
        }
        first_s = [each.arrivals[0].at_s for each in exchange.answers if each.arrivals]
        if exchange.is_streamed and first_s:
            attributes["gen_ai.response.time_to_first_chunk"] = min(first_s) - exchange.began_s
        return attributes


def _answer_attributes(answer: Answer) -> dict[str, Any]:
    """Return what ``router`` told of an answer: its arm and the rounds of speculation."""
    attributes: dict[str, Any] = {
        "draftproof.output_tokens": answer.num_output_tokens,
        "draftproof.finish_reason": answer.finish_reason,
    }
    if (last := answer.last) is None:
        return attributes
    attributes |= {"draftproof.arm": last.arm, "draftproof.fallback_from": list(last.fallback_from)}
    if last.counts is not None:
        attributes |= {
            "draftproof.num_rounds": last.counts.num_rounds,
            "draftproof.draft_tokens": last.counts.total_draft_tokens,
            "draftproof.accepted_draft_tokens": last.counts.total_accepted_draft_tokens,
            "draftproof.drafted_per_round": list(last.drafted_per_round),
        }
    return attributes


def _unix_ns(exchange: Exchange, monotonic_s: float) -> int:
    return exchange.began_unix_ns + int(1e9 * (monotonic_s - exchange.began_s))
