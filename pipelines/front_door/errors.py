"""Turns errors into OpenAI's error object or Anthropic's, with the four parts of ours in it."""

from __future__ import annotations

import logging
import re
from typing import Any, TypeGuard

from aiohttp import hdrs, web
from pydantic_core import to_json

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import (
    ChatTemplateError,
    DraftproofError,
    EngineFailedError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    ProcessEndedError,
    PromptTooLongError,
    RateLimitError,
    RequestCancelledError,
    RequestTimeoutError,
    ResponseNotFoundError,
    ServerBusyError,
    ServerUnavailableError,
    UnauthorizedError,
)
from pipelines.front_door.observing.exchange import EXCHANGE
from pipelines.front_door.requests.body import ENCODINGS

_LOG = logging.getLogger(__name__)

_FIELD = re.compile(r"[a-z_]+(?=$|[=[.]|\S* (?:has|gives) )")
_NAME_FIRST = re.compile(r"\w+[_.]|(\w+) [^:]*: \1=")  # such as top_p, or n in "n is out of range: n=0"
_LONGEST_PART = 300  # characters: an error may quote what a client sent, which may be of any length

DEFECT = InternalError(
    "the server failed on this request, by a bug in Draftproof",
    remedy="the server's log has the traceback",
)

# Class -> status, OpenAI's type and code. The first that fits counts.
_KINDS: tuple[tuple[type[DraftproofError], int, str, str | None], ...] = (
    (UnauthorizedError, 401, "authentication_error", "invalid_api_key"),
    (ForbiddenError, 403, "permission_error", "not_allowed"),
    (RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded"),
    (ModelNotFoundError, 404, "invalid_request_error", "model_not_found"),
    (ResponseNotFoundError, 404, "invalid_request_error", "previous_response_not_found"),
    (PromptTooLongError, 400, "invalid_request_error", "context_length_exceeded"),
    (ChatTemplateError, 400, "invalid_request_error", "chat_template"),
    (InvalidRequestError, 400, "invalid_request_error", None),
    (ServerBusyError, 503, "server_error", "overloaded"),
    (ServerUnavailableError, 503, "server_error", "unavailable"),
    (ProcessEndedError, 503, "server_error", "unavailable"),
    (RequestCancelledError, 503, "server_error", "unavailable"),  # by a server that stops
    (RequestTimeoutError, 504, "server_error", "timeout"),
    (EngineFailedError, 500, "server_error", "engine_failed"),
    (DraftproofError, 500, "server_error", "internal_error"),
)


_OVERLOADED = 529  # in place of 503
_ANTHROPICS = {404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}
"""Status -> Anthropic's type, where it is not OpenAI's or ``api_error``."""

_MORE = {"thread": {"details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}}
"""Field -> keys of Anthropic's error that tell its clients to do without it."""

_AGAIN = "send the request again later, or to another server"


_GUIDE = "guided_decoding_guide_type="


def in_the_clients_words(error: InvalidRequestError, guide_field: str) -> InvalidRequestError:
    """Return an error of the models with the client's field in place of Triton's tensor of guides."""
    what, found, reason = error.what.partition(f": {_GUIDE}")
    if found:
        return type(error)(f"{what}: {guide_field}={reason}", error.remedy)
    if not error.values.startswith(_GUIDE):
        return error
    values = f"{guide_field}={error.values.removeprefix(_GUIDE)}"
    return type(error)(error.what, values=values, limit=error.limit, remedy=error.remedy)


def status_of(error: DraftproofError) -> int:
    """Return the HTTP status of an error."""
    return _kind(error)[0]


def headers_of(error: DraftproofError) -> dict[str, str]:
    """Return the HTTP headers of an error besides those of its body."""
    if isinstance(error, UnauthorizedError):
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": "1"} if status_of(error) in (429, 503) else {}


def error_document(error: DraftproofError) -> dict[str, Any]:
    """Return OpenAI's error object."""
    status, kind, code = _kind(error)
    seen = error.values or error.what.partition(": ")[2]
    named = _FIELD.match(seen[:_LONGEST_PART])
    param = named[0] if named and isinstance(error, (InvalidRequestError, ForbiddenError)) else None
    error = _without_internals(error, status)
    parts = [_cut(part) for part in (error.what, error.values, error.limit, error.remedy)]
    return {
        "error": {
            "message": _message(*parts),
            "type": kind,
            "param": param,
            "code": code,
            **dict(zip(("what", "values", "limit", "remedy"), parts, strict=True)),
        }
    }


def is_anthropics(request: web.Request | None) -> TypeGuard[web.Request]:
    """Return whether a request is one of Anthropic's API, whose errors and streams have another form."""
    return request is not None and request.path.startswith("/v1/messages")


def error_body(error: DraftproofError, request: web.Request | None = None, status: int = 0) -> bytes:
    """Return the error object of the API that a request asks, as JSON; without a request OpenAI's.

    Args:
        error: The error.
        request: The request that failed.
        status: HTTP status; 0 for the error's own.
    """
    document = error_document(error)
    if is_anthropics(request):
        found = document["error"] | _MORE.get(document["error"]["param"], {})
        kind = found["type"].replace("server_error", "api_error")
        found["type"] = _ANTHROPICS.get(status or status_of(error), kind)
        document = {"type": "error", "error": found, "request_id": request[EXCHANGE].request_id}
    return to_json(document)


def error_response(
    error: DraftproofError, status: int = 0, request: web.Request | None = None
) -> web.Response:
    """Return the response that tells a client of an error; arguments are those of ``error_body``."""
    found = status or status_of(error)
    return web.Response(
        body=error_body(error, request, status),
        status=_OVERLOADED if found == 503 and is_anthropics(request) else found,
        content_type="application/json",
        headers=headers_of(error),
    )


def response_to(error: Exception, request: web.Request, settings: FrontDoorSettings) -> web.Response:
    """Return the response to an error of any class; a defect of ours is logged with its traceback."""
    if isinstance(error, DraftproofError):
        return error_response(error, request=request)
    if isinstance(error, web.HTTPException):  # from aiohttp: unknown path, body too large
        return _response_to_http(error, request, settings)
    _LOG.error("%s %.200r", request.method, request.path, exc_info=error)
    return error_response(DEFECT, request=request)


def _response_to_http(
    error: web.HTTPException, request: web.Request, settings: FrontDoorSettings
) -> web.Response:
    """Return the response for an error of aiohttp."""
    methods, seconds = error.headers.get(hdrs.ALLOW, ""), f"{settings.body_timeout_s:g} s"
    taken = ", ".join(ENCODINGS)
    known = {
        404: ("the path is unknown", "the paths that GET /openapi.json lists", "send it to one of these"),
        405: ("the path does not have this method", methods, "use this method"),
        408: ("the body did not arrive in time", seconds, "send it faster, or a smaller one"),
        413: ("the body is too large", f"{settings.max_body_bytes} bytes", "send a smaller one"),
        415: ("the encoding of the body is not supported", f"one of {taken}", "send it as it is"),
    }
    others = (error.reason or "the request cannot be read", "HTTP/1.1", "correct the request")
    what, limit, remedy = known.get(error.status, others)
    seen = f"{request.method} {request.path!r}"
    refused = InvalidRequestError(what, values=seen, limit=limit, remedy=remedy)
    response = error_response(refused, error.status, request)
    response.headers.update({hdrs.ALLOW: methods} if methods else {})
    return response


def _without_internals(error: DraftproofError, status: int) -> DraftproofError:
    """Return an error without names of models, addresses and paths of the server."""
    if isinstance(error, (ServerBusyError, RequestTimeoutError)) or status < 500:
        return error
    if isinstance(error, (ServerUnavailableError, RequestCancelledError)):
        return type(error)(_happened(error), remedy=_AGAIN)
    if error is not DEFECT:
        _LOG.warning("a request failed: %s", error)
    return type(error)(_happened(error), remedy=_AGAIN) if isinstance(error, EngineFailedError) else DEFECT


def _happened(error: DraftproofError) -> str:
    """Return what happened without the values, which stand behind a colon."""
    return error.what.partition(": ")[0]


def _message(what: str, values: str, limit: str, remedy: str) -> str:
    """Return the four parts as sentences."""
    seen = f"{what}: {values}" if values else what
    return " ".join(map(_sentence, filter(None, (seen, limit and f"allowed: {limit}", remedy))))


def _sentence(part: str) -> str:
    """Return a part with a capital letter, unless it begins with a name, and a full stop."""
    begin = part[0] if _NAME_FIRST.match(part) else part[0].upper()
    return begin + part[1:] + ("" if part.endswith((".", "?", "!")) else ".")


def _cut(part: str) -> str:
    return part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}..."


def _kind(error: DraftproofError) -> tuple[int, str, str | None]:
    return next((status, kind, code) for found, status, kind, code in _KINDS if isinstance(error, found))
