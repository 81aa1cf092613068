"""Turns errors into the error objects of OpenAI's and Anthropic's APIs."""

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

_FIELD = re.compile(r"(?:^|: |; )([a-z_]+)(?=$|[=[.;]|\S* (?:has|gives|is unknown|is missing)\b)")
"""The field that an error is about: its message begins with it, or has it behind a colon."""

_NAME_FIRST = re.compile(r"[a-z]\w*(?:[_.=[]| is (?:unknown|missing);)")
_INSIDE = re.compile(r"[^\w ',]|\d")
_LONGEST_PART = 600  # characters: an error may quote what a client sent, which may be of any length

DEFECT = InternalError(
    "the server failed on this request, by a bug in Draftproof", "the server's log has the traceback"
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


def in_the_clients_words(error: InvalidRequestError, guide_field: str) -> InvalidRequestError:
    """Return an error of the models with the client's field in place of Triton's tensor of guides."""
    return type(error)(error.message.replace("guided_decoding_guide_type=", f"{guide_field}="), error.remedy)


def error_document(error: DraftproofError) -> dict[str, Any]:
    """Return OpenAI's error object, which also has the message and the remedy each by itself."""
    status, kind, code = _kind(error)
    named = _FIELD.search(error.message[:_LONGEST_PART])
    told = _without_internals(error, status)
    what, remedy = _cut(told.message), _cut(told.remedy)
    return {
        "error": {
            "message": " ".join(_sentence(part) for part in (what, remedy) if part),
            "type": kind,
            "param": named[1] if named and isinstance(error, (InvalidRequestError, ForbiddenError)) else None,
            "code": code,
            "what": what,
            "remedy": remedy,
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
        found["type"] = _ANTHROPICS.get(status or _kind(error)[0], kind)
        document = {"type": "error", "error": found, "request_id": request[EXCHANGE].request_id}
    return to_json(document)


def error_response(
    error: DraftproofError, status: int = 0, request: web.Request | None = None
) -> web.Response:
    """Return the response that tells a client of an error; arguments are those of ``error_body``."""
    found = status or _kind(error)[0]
    headers = {"Retry-After": "1"} if _kind(error)[0] in (429, 503) else {}
    if isinstance(error, UnauthorizedError):
        headers = {"WWW-Authenticate": "Bearer"}
    return web.Response(
        body=error_body(error, request, status),
        status=_OVERLOADED if found == 503 and is_anthropics(request) else found,
        content_type="application/json",
        headers=headers,
    )


def response_to(error: Exception, request: web.Request, settings: FrontDoorSettings) -> web.Response:
    """Return the response to an error of any class; a defect of ours is logged with its traceback."""
    if isinstance(error, DraftproofError):
        return error_response(error, request=request)
    if not isinstance(error, web.HTTPException):
        _LOG.error("%s %.200r", request.method, request.path, exc_info=error)
        return error_response(DEFECT, request=request)
    # From aiohttp: the path is unknown, the body too large and so on.
    methods = error.headers.get(hdrs.ALLOW, "")
    what, remedy = {
        404: ("this path is unknown", "send it to one that docs/reference/openai.md lists"),
        405: ("this path does not have this method", f"use {methods}"),
        408: (f"the body did not arrive within {settings.body_timeout_s:g} s", "send it faster"),
        413: (f"the body is larger than {settings.max_body_bytes} bytes", "send a smaller one"),
        415: (f"the body is neither plain nor {', '.join(ENCODINGS)}", "send it as it is"),
    }.get(error.status, (error.reason or "the request cannot be read", "correct the request"))
    refused = InvalidRequestError(f"{what}: {request.method} {request.path!r}", remedy)
    response = error_response(refused, error.status, request)
    response.headers.update({hdrs.ALLOW: methods} if methods else {})
    return response


def _without_internals(error: DraftproofError, status: int) -> DraftproofError:
    """Return an error without names of models, addresses and paths of the server.

    Of an outage clients read what stands before its values, if these are words alone.
    """
    if status < 500 or isinstance(error, (ServerBusyError, RequestTimeoutError)):
        return error
    if not isinstance(error, (ServerUnavailableError, RequestCancelledError)):
        if error is not DEFECT:
            _LOG.warning("a request failed: %s", error)
        if not isinstance(error, EngineFailedError):
            return DEFECT
    begin = re.split("[:;]", error.message, maxsplit=1)[0]
    what = "the server cannot answer now" if _INSIDE.search(begin) else begin
    return type(error)(what, "send the request again later, or to another server")


def _sentence(part: str) -> str:
    """Return a part with a capital letter, unless it begins with a name, and a full stop."""
    begin = part[0] if _NAME_FIRST.match(part) else part[0].upper()
    return begin + part[1:] + ("" if part.endswith((".", "?", "!")) else ".")


def _cut(part: str) -> str:
    return part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}..."


def _kind(error: DraftproofError) -> tuple[int, str, str | None]:
    return next((status, kind, code) for found, status, kind, code in _KINDS if isinstance(error, found))
