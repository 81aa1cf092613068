"""HTTP responses for errors, and what is refused before a path is looked at."""

from __future__ import annotations

from aiohttp import web

from pipelines.errors import (
    DraftproofError,
    InternalError,
    InvalidRequestError,
    ProcessEndedError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.triton.gateway.messages.inference_checks import MAX_BODY_BYTES, quoted

KEY_HEADER = "draftproof-key"
"""HTTP header and gRPC metadata with which operators send the server's key."""

_STATUS: tuple[tuple[type[DraftproofError], int], ...] = (
    (InvalidRequestError, 400),
    (ServerBusyError, 503),
    (ServerUnavailableError, 503),
    (ProcessEndedError, 503),
    (RequestTimeoutError, 504),
)

DEFECT = InternalError(
    "the server failed on this request",
    limit="this is a bug in Draftproof",
    remedy="the server's log has the traceback",
)


def check_sender(request: web.Request) -> None:
    """Refuse requests from web pages: they come from other sites, since this server has no pages.

    A matching host name proves nothing, because it may resolve to this address (DNS rebinding).
    """
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") != "none":
        raise web.HTTPForbidden


def error_response(error: DraftproofError) -> web.Response:
    """Return the response that tells a client of an error."""
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    headers = {"Retry-After": "1"} if status == 503 else {}
    return web.json_response({"error": error.to_wire()}, status=status, headers=headers)


def words_for(request: web.Request, error: web.HTTPException) -> str:
    """Explain an error of aiohttp, in the form of ``DraftproofError.to_wire``."""
    limits = {
        403: ("only operators may do this, and web pages may not", f"the header {KEY_HEADER}"),
        404: ("path not found", "the inference paths of KServe's protocol"),
        405: ("method not allowed", "GET for metadata, POST for inference"),
        413: ("the body is too large", f"{MAX_BODY_BYTES} bytes"),
    }
    what, limit = limits.get(error.status, (error.reason or "the request cannot be read", "HTTP/1.1"))
    return InvalidRequestError(
        what,
        values=f"{request.method} {quoted(request.path)}",
        limit=limit,
        remedy="see docs/security/threat-model.md for who may use which path",
    ).to_wire()
