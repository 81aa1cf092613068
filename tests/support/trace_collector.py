"""A collector of OpenTelemetry's traces."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.loopback_http import SilentHandler, served


@dataclass
class Collector:
    """Receives spans over HTTP, as a collector does."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    services: list[str] = field(default_factory=list)

    def trace(self, trace_id: str) -> dict[str, Any]:
        """Return the spans of a trace by their names."""
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}


class _Handler(SilentHandler):
    collector: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.read_body()
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.collector.services.append(values(resource.resource)["service.name"])
            for scope in resource.scope_spans:
                self.collector.spans += scope.spans
        self.send_whole(200, b"")


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector during the block."""
    collector = Collector()
    with served(_Handler, collector=collector) as collector.url:
        yield collector


def values(holder: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource."""

    def plain(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [plain(each) for each in value.array_value.values]
        return getattr(value, kind)

    return {each.key: plain(each.value) for each in holder.attributes}
