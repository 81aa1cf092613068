"""Serve an agent over HTTP to the controller that has the key."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pipelines import configuration
from pipelines.canary.fleet.agent import Agent, as_document
from pipelines.canary.fleet.call import DESCRIBE, PATH, Call
from pipelines.errors import (
    DraftproofError,
    InternalError,
    InvalidRequestError,
    ServerUnavailableError,
    UnauthorizedError,
)

MAX_BODY_BYTES = 2**20  # a call has the limits and a table of arms
_TIMEOUT_S = 10.0

_LOG = logging.getLogger(__name__)


class AgentServer(ThreadingHTTPServer):
    """HTTP server of an agent; ``serve_forever`` runs it.

    ``GET /server`` describes the pair in service. ``POST /rollout/<method>`` carries out a method of
    ``World``. The answer is ``{"result": ...}``, or ``{"error": ...}`` as errors travel elsewhere.

    Args:
        agent: Agent of the server.
        key: Key that a controller must send.
        address: Host and port; port 0 chooses a free one (``server_port``).
    """

    daemon_threads = True

    def __init__(self, agent: Agent, key: str, address: tuple[str, int]) -> None:
        self.agent = agent
        self.key = key
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection, instead of printing it to the terminal."""
        _LOG.info("a connection to the agent broke off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: AgentServer
    timeout = _TIMEOUT_S
    protocol_version = "HTTP/1.1"
    server_version = "Draftproof"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(lambda: self.server.agent.describe(), self.path == DESCRIBE)

    def do_POST(self) -> None:
        self._answer(self._carry_out, self.path.startswith(PATH))

    def _carry_out(self) -> Any:
        call = configuration.parse_json(
            Call, self._body, InvalidRequestError, "run the same version of Draftproof on all machines"
        )
        return self.server.agent.carry_out(self.path.removeprefix(PATH), call)

    def _answer(self, act: Callable[[], Any], is_known: bool) -> None:
        try:
            self._body = self._read()
            self._check_key()
            if not is_known:
                raise InvalidRequestError(
                    "unknown path",
                    values=f"{self.command} {self.path[:80]}",
                    limit=f"GET {DESCRIBE}; POST {PATH}<method>",
                    remedy="give the address of an agent of this version",
                )
            self._send(HTTPStatus.OK, {"result": as_document(_done(act))})
        except UnauthorizedError as error:
            self._send(HTTPStatus.UNAUTHORIZED, {"error": error.to_wire()})
        except InvalidRequestError as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": error.to_wire()})
        except DraftproofError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"error": error.to_wire()})
        except (TimeoutError, ConnectionError):
            self.close_connection = True
        except Exception:
            _LOG.exception("an agent failed")
            defect = InternalError("an agent failed", remedy="read the log of the agent")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": defect.to_wire()})

    def _check_key(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(), self.server.key.encode()):
            raise UnauthorizedError(
                "the agent's key is missing or wrong",
                values="header Authorization",
                limit="the content of the file that the agent was started with",
                remedy="give the controller the same key file",
            )

    def _read(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise InvalidRequestError(
                "the body has no length or is too long",
                values=f"Content-Length={length[:80]!r}",
                limit=f"{MAX_BODY_BYTES} bytes",
                remedy="run the same version of Draftproof on all machines",
            )
        return self.rfile.read(int(length))

    def _send(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log one line per request."""
        _LOG.info("%s " + format, self.address_string(), *args)


def _done(act: Callable[[], Any]) -> Any:
    """Carry out a call; connections that its work loses are not taken for that of the controller.

    Raises:
        ServerUnavailableError: The work lost a connection.
        DraftproofError: As the call.
    """
    try:
        return act()
    except (TimeoutError, ConnectionError) as error:
        _LOG.exception("an agent lost a connection")
        raise ServerUnavailableError(
            "the agent lost a connection that its work needs",
            values=repr(error),
            limit="a server and a machine that answer the agent",
            remedy="read the log of the agent; the controller asks again at its next look",
        ) from None
