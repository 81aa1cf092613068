"""An HTTP server on the loopback for stand-ins: each request has a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class SilentHandler(BaseHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, *_: object) -> None:
        """Write nothing."""

    def read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send_whole(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send an answer whose length is told, unless the headers tell another one."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1", **fields: object) -> Iterator[str]:
    """Serve during the block with a handler that has these fields; yields the address."""
    server = ThreadingHTTPServer((host, 0), type("Handler", (handler,), fields))
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
