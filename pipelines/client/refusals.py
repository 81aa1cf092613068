"""Turns Triton's error messages back into the errors that the server raised."""

from __future__ import annotations

import re
from typing import Any

import grpc  # type: ignore[import-untyped]

from pipelines.client.connection import Timeouts
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
            f"the server is not ready for this request: {message}",
            "wait for 'draftproof ready', then read the server's log",
        )
    if is_client_fault or _INVALID_REQUEST.search(begin):
        return InvalidRequestError(
            f"Triton refused the request: {message}",
            "check the model name, the inputs and the client's version",
        )
    return EngineFailedError(f"the server failed the request: {message}", "read the server's log")


def unreachable(url: str, detail: str) -> ServerUnavailableError:
    """Return the error for a server that does not answer at ``url`` or disconnected during a request."""
    return ServerUnavailableError(
        f"no server answers at {url}: {detail}",
        "start one with 'draftproof serve', which waits until it is ready",
    )


def timed_out(what: str, limit_s: float | None) -> RequestTimeoutError:
    """Return the error for a request that exceeded one of the client's ``Timeouts``; None is the server's."""
    whose = "the server's limit" if limit_s is None else f"the client's limit of {limit_s:g} s"
    return RequestTimeoutError(
        f"the request took longer than {whose}: {what}",
        "ask for fewer tokens, wait until the server is less busy, or raise the timeout",
    )


def as_error(error: Any, address: str, timeouts: Timeouts) -> DraftproofError:
    """Convert an error of gRPC to one of ours."""
    status, detail = error.code(), error.details() or ""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out("the deadline passed", timeouts.total_s)
    if status is grpc.StatusCode.UNAVAILABLE:
        return unreachable(address, detail)
    if status is grpc.StatusCode.CANCELLED:
        return RequestCancelledError(f"the request was cancelled: {detail}", "send it again")
    faults = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.OUT_OF_RANGE)
    return refusal(detail, is_client_fault=status in faults)
