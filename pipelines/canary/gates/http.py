"""Serve the verdict of a rollout over HTTP: JSON for Argo Rollouts, status codes for Flagger."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipelines.canary.gates.verdict import HOOKS, Answer, answer
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import DraftproofError, InternalError, InvalidRequestError

MAX_BODY_BYTES = 2**20  # a webhook of Flagger has less than 1 KiB
_TIMEOUT_S = 10.0

_LOG = logging.getLogger(__name__)


class GateServer(ThreadingHTTPServer):
    """HTTP server for other rollout tools; ``serve_forever`` runs it.

    ``GET /verdict`` returns the verdict. ``POST /gate/<hook>`` returns 200 if the gate is open, else 503.
    Both accept ``?candidate=<recipe>``.

    Args:
        read: Reads the latest rollout; raises CanaryError if there is none.
        address: Host and port; port 0 chooses a free one (``server_port``).
    """

    daemon_threads = True

    def __init__(self, read: Callable[[], RolloutRecord], address: tuple[str, int]) -> None:
        self.read_record = read
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection, instead of printing it to the terminal."""
        _LOG.info("a connection to the gate server broke off", exc_info=True)


class _Refusal(Exception):
    """Ends a request with an error status."""

    def __init__(self, status: HTTPStatus, error: DraftproofError, allow: str = "") -> None:
        self.status = status
        self.error = error
        self.allow = allow


class _Handler(BaseHTTPRequestHandler):
    server: GateServer
    timeout = _TIMEOUT_S
    server_version = "Draftproof"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer({"/verdict": self._verdict})

    def do_POST(self) -> None:
        hooks = {f"/gate/{hook}": partial(self._gate, hook) for hook in HOOKS}
        self._answer(hooks)

    def _answer(self, routes: Mapping[str, Callable[[], tuple[HTTPStatus, dict[str, Any]]]]) -> None:
        path = urlsplit(self.path).path
        try:
            if path not in routes:
                raise self._unknown(path)
            status, document = routes[path]()
        except _Refusal as refusal:
            self._send(refusal.status, _error_document(refusal.error), refusal.allow)
        except InvalidRequestError as error:
            self._send(HTTPStatus.BAD_REQUEST, _error_document(error))
        except DraftproofError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, _error_document(error))
        except TimeoutError:
            self.close_connection = True
        except Exception:
            _LOG.exception("a gate failed")
            defect = InternalError("a gate failed", remedy="read the log of the gate server")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _error_document(defect))
        else:
            self._send(status, document)

    def _verdict(self) -> tuple[HTTPStatus, dict[str, Any]]:
        return HTTPStatus.OK, self._judgement().document

    def _gate(self, hook: str) -> tuple[HTTPStatus, dict[str, Any]]:
        self._body()
        found = self._judgement()
        is_open = found.opens(hook)
        status = HTTPStatus.OK if is_open else HTTPStatus.SERVICE_UNAVAILABLE
        return status, {"is_open": is_open, **found.document}

    def _judgement(self) -> Answer:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if query.keys() - {"candidate"} or any(len(values) > 1 for values in query.values()):
            raise InvalidRequestError(
                "the query is invalid",
                values=urlsplit(self.path).query[:80],
                limit="at most one candidate=<recipe>",
                remedy="correct the URL in the configuration of the rollout tool",
            )
        return answer(self.server.read_record(), *query.get("candidate", []))

    def _body(self) -> Any:
        """Read the JSON body."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            error = InvalidRequestError(
                "the body has no length",
                values=f"Content-Length={length!r}",
                limit="a decimal number",
                remedy="send the header Content-Length",
            )
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, error)
        if int(length) > MAX_BODY_BYTES:
            error = InvalidRequestError(
                "the body is too long",
                values=f"{length} bytes",
                limit=f"{MAX_BODY_BYTES} bytes",
                remedy="send the webhook of Flagger, which has less than 1 KiB",
            )
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as reason:
            raise InvalidRequestError(
                "the body is not JSON",
                values=str(reason)[:80],
                limit="one JSON document",
                remedy="send a JSON body",
            ) from None

    def _unknown(self, path: str) -> _Refusal:
        posts = [f"/gate/{hook}" for hook in HOOKS]
        allow = "GET" if path == "/verdict" else "POST" if path in posts else ""
        error = InvalidRequestError(
            "unknown path" if not allow else "method not allowed",
            values=f"{self.command} {path[:80]}",
            limit=f"GET /verdict; POST {', '.join(posts)}",
            remedy="correct the URL in the configuration of the rollout tool",
        )
        return _Refusal(HTTPStatus.METHOD_NOT_ALLOWED if allow else HTTPStatus.NOT_FOUND, error, allow)

    def _send(self, status: HTTPStatus, document: dict[str, Any], allow: str = "") -> None:
        body = json.dumps(document, allow_nan=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if allow:
            self.send_header("Allow", allow)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what ``http.server`` refuses itself, such as an invalid request line."""
        self._send(HTTPStatus(code), _error_document(InvalidRequestError(message or HTTPStatus(code).phrase)))

    def log_message(self, format: str, *args: Any) -> None:
        """Log one line per request."""
        _LOG.info("%s " + format, self.address_string(), *args)


def _error_document(error: DraftproofError) -> dict[str, Any]:
    parts = ("code", "what", "values", "limit", "remedy")
    return {"error": {part: getattr(error, part) for part in parts}}
