"""An HTTP server whose responses a test writes down, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.loopback_http import SilentHandler, served


@dataclass
class Script:
    """Responses to give, in order; the last one is repeated.

    Attributes:
        responses: Status, headers and content of each response. A content that is shorter than a given
            Content-Length closes the connection early.
        requests: Bodies of the requests that came, and their headers.
    """

    responses: list[tuple[int, dict[str, str], bytes]]
    requests: list[tuple[Any, dict[str, str]]] = field(default_factory=list)
    url: str = ""


@contextmanager
def scripted_http(*responses: tuple[int, dict[str, str], bytes]) -> Iterator[Script]:
    """Run the server during the block."""
    script = Script(list(responses))

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.read_body()))

        def _answer(self, body: Any) -> None:
            script.requests.append((body, dict(self.headers)))
            left = script.responses
            status, headers, content = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    with served(Handler) as script.url:
        yield script
