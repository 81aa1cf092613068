"""The gates over HTTP: JSON for Argo's web metric, status codes for Flagger, a judge for Kayenta."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pipelines.canary.gates.kayenta import judge_series
from pipelines.canary.gates.verdict import HOOKS, Answer, answer
from pipelines.canary.record import RolloutRecord
from pipelines.errors import DraftproofError, InternalError, InvalidRequestError

MAX_BODY_BYTES = 8 * 2**20  # a day of 40 metrics by the minute
_TIMEOUT_S = 10.0

_LOG = logging.getLogger(__name__)


class GateServer(ThreadingHTTPServer):
    """Answers other rollout tools; ``serve_forever`` in a thread or alone.

    ``GET /verdict`` gives the verdict; ``POST /gate/<hook>`` is 200 where the gate stands open, else 503;
    ``POST /judge`` judges series. The first two take ``?candidate=<recipe>``.

    Args:
        read: Gives the latest rollout; raises CanaryError where there is none.
        address: Host and port; port 0 takes a free one, see ``server_port``.
    """

    daemon_threads = True

    def __init__(self, read: Callable[[], RolloutRecord], address: tuple[str, int]) -> None:
        self.read_record = read
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no concern of the terminal's."""
        _LOG.info("a request to the gates broke off", exc_info=True)


class _Refusal(Exception):
    """An answer other than of what was asked."""

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
        self._answer({**hooks, "/judge": self._judge})

    def _answer(self, ways: dict[str, Callable[[], tuple[HTTPStatus, dict[str, Any]]]]) -> None:
        path = urlsplit(self.path).path
        try:
            if path not in ways:
                raise self._unknown(path)
            status, document = ways[path]()
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
            defect = InternalError("a gate failed", remedy="read the log of the gates")
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

    def _judge(self) -> tuple[HTTPStatus, dict[str, Any]]:
        return HTTPStatus.OK, judge_series(self._body())

    def _judgement(self) -> Answer:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if query.keys() - {"candidate"} or any(len(values) > 1 for values in query.values()):
            raise InvalidRequestError(
                "a query is not known",
                values=urlsplit(self.path).query[:80],
                limit="candidate=<recipe> at most",
                remedy="correct the address that the rollout tool asks",
            )
        return answer(self.server.read_record(), *query.get("candidate", []))

    def _body(self) -> Any:
        """From JSON."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            error = InvalidRequestError("a body has no length", values=f"Content-Length={length!r}")
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, error)
        if int(length) > MAX_BODY_BYTES:
            error = InvalidRequestError(
                "a body is too long",
                values=f"{length} bytes",
                limit=f"{MAX_BODY_BYTES} bytes",
                remedy="ask for fewer series, or in longer steps",
            )
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error)
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as reason:
            raise InvalidRequestError(
                "a body is not JSON",
                values=str(reason)[:80],
                limit="one document",
                remedy="correct the sender",
            ) from None

    def _unknown(self, path: str) -> _Refusal:
        posts = [*(f"/gate/{hook}" for hook in HOOKS), "/judge"]
        allow = "GET" if path == "/verdict" else "POST" if path in posts else ""
        error = InvalidRequestError(
            "an address is not known" if not allow else "an address is not asked in this way",
            values=f"{self.command} {path[:80]}",
            limit=f"GET /verdict; POST {', '.join(posts)}",
            remedy="correct the address that the rollout tool asks",
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
        """What ``http.server`` refuses by itself, such as a request line that is none."""
        self._send(HTTPStatus(code), _error_document(InvalidRequestError(message or HTTPStatus(code).phrase)))

    def log_message(self, format: str, *args: Any) -> None:
        """One line for each request."""
        _LOG.info("%s " + format, self.address_string(), *args)


def _error_document(error: DraftproofError) -> dict[str, Any]:
    parts = ("code", "what", "values", "limit", "remedy")
    return {"error": {part: getattr(error, part) for part in parts}}
