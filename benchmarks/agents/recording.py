"""Forward the requests of a client to a server, and note what their answers cost."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from benchmarks.streams import TIMEOUT_S
from pipelines.deploy.ports import HOST

# The first text or call, in the events of chats, Messages and Responses.
_TEXT = re.compile(
    rb'content_block_delta|response\.(?:output_text|function_call_arguments)\.delta|"content": ?"[^"]'
    rb'|"tool_calls": ?\['
)
_COUNTS = re.compile(rb'"(prompt_tokens|input_tokens|cached_tokens|cache_read_input_tokens)": ?(\d+)')


@dataclass(frozen=True)
class Asked:
    """A request that was answered.

    Attributes:
        num_prompt_tokens: Tokens of its prompt.
        num_cached: Those of them that were not computed.
        first_s: Seconds until the first text or call.
    """

    num_prompt_tokens: int
    num_cached: int
    first_s: float


@contextmanager
def recording(port: int) -> Iterator[tuple[str, list[Asked]]]:
    """Yield the URL of a server that forwards to a port, and the requests that it has forwarded."""
    asked: list[Asked] = []
    with ThreadingHTTPServer((HOST, 0), partial(_Forwarding, port, asked)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{HOST}:{server.server_port}", asked
        server.shutdown()


class _Forwarding(BaseHTTPRequestHandler):
    def __init__(self, port: int, asked: list[Asked], *given: Any) -> None:
        self._port, self._asked = port, asked
        super().__init__(*given)

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self._forward()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "accept-encoding"}
        began_s, first_s, seen = time.monotonic(), 0.0, b""
        with closing(HTTPConnection(HOST, self._port, timeout=TIMEOUT_S)) as connection:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type") or "application/json")
            self.end_headers()
            while data := answer.read1():
                self.wfile.write(data)
                seen += data
                if not first_s and _TEXT.search(seen):
                    first_s = time.monotonic() - began_s
        counts = {name.decode(): int(number) for name, number in _COUNTS.findall(seen)}
        if first_s and counts:
            apart = counts.get("cache_read_input_tokens", 0)  # Anthropic's input_tokens are those computed
            num = counts.get("prompt_tokens") or counts.get("input_tokens", 0) + apart
            self._asked.append(Asked(num, counts.get("cached_tokens", 0) + apart, round(first_s, 2)))
