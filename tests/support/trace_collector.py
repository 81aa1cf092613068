"""A collector of OpenTelemetry's traces."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Receives spans over HTTP, as a collector does."""

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

    def trace(self, trace_id: str) -> dict[str, Any]:
        """Return the spans of a trace by their names."""
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}

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
