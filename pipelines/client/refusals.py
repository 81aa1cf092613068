"""Turns Triton's error messages back into the errors that the server raised."""

from __future__ import annotations

import re

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerUnavailableError,
    from_wire,
)

# Triton rejects some requests before our code sees them. Its messages carry no error class, and over a gRPC
# stream no status either, so its wording has to tell an invalid request from a failure of the server.
_INVALID_REQUEST = re.compile(
    r"unknown model|inference input|must specify|missing required|(failed|unable) to parse"
    r"|\b(inputs?|parameter|shape|datatype)\b.*\bexpected\b|\bexpected\b.*\b(inputs?|shape|datatype)\b",
    re.IGNORECASE | re.DOTALL,
)
_READ = 2000  # characters: the pattern takes quadratic time, and a message may quote what a client sent
_NOT_READY = re.compile(r"is not ready|unavailable|shutting down|server exiting", re.IGNORECASE)


def refusal(message: str, *, is_client_fault: bool | None = None) -> DraftproofError:
    """Return the error for an error message of the server.

    Args:
        message: Text of Triton's error response.
        is_client_fault: Whether the transport's status blames the client, as HTTP 400 does; None if there is
            no status.
    """
    error = from_wire(message)
    if error is not None:
        return error
    begin = message[:_READ]
    if _NOT_READY.search(begin):
        return ServerUnavailableError(
            "the server is not ready for this request",
            values=message,
            limit="all models must be loaded",
            remedy="wait for 'draftproof ready', then read the server's log",
        )
    if is_client_fault or _INVALID_REQUEST.search(begin):
        return InvalidRequestError(
            "Triton refused the request",
            values=message,
            limit="the inputs must match the model's config.pbtxt",
            remedy="check the model name, the inputs and the client's version",
        )
    return EngineFailedError(
        "the server failed the request",
        values=message,
        limit="the server sent no further detail",
        remedy="read the server's log",
    )


def unreachable(url: str, detail: str) -> ServerUnavailableError:
    """Return the error for a server that does not answer at ``url`` or disconnected during a request."""
    return ServerUnavailableError(
        "no server answers",
        values=f"{url}: {detail}",
        limit="a ready Triton server is needed",
        remedy="start one with 'draftproof serve', which waits until it is ready",
    )


def timed_out(what: str, limit_s: float | None) -> RequestTimeoutError:
    """Return the error for a request that exceeded one of the client's ``Timeouts``; None is the server's."""
    return RequestTimeoutError(
        f"the request took too long: {what}",
        values="" if limit_s is None else f"waited {limit_s:g} s",
        limit="the server's time limit" if limit_s is None else "the client's own timeouts",
        remedy="ask for fewer tokens, wait until the server is less busy, or raise the timeout",
    )


def cancelled(detail: str) -> RequestCancelledError:
    """Return the error for a call that was cancelled by the caller or on the way."""
    return RequestCancelledError(
        "the request was cancelled",
        values=detail,
        limit="a cancelled request has no answer",
        remedy="send it again",
    )
