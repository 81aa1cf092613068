"""From what Triton says when it refuses a request to the error that the server raised."""

from __future__ import annotations

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerUnavailableError,
    from_wire,
)

# Triton answers some requests before any code of ours sees them. Its messages carry no class, and
# over a gRPC stream no status either: these words of theirs name a fault of the request.
_FAULTS_OF_THE_REQUEST = (
    "unknown model",
    "is not found",
    "inference input",
    "expected",
    "must specify",
    "missing",
    "failed to parse",
    "unable to parse",
)
_NOT_READY = ("is not ready", "unavailable", "shutting down", "server exiting")


def refusal(message: str, *, is_client_fault: bool | None = None) -> DraftproofError:
    """The error behind a message of the server.

    Args:
        message: Text of Triton's error response.
        is_client_fault: What the transport's status says, such as HTTP 400; None if it says nothing.
    """
    error = from_wire(message)
    if error is not None:
        return error
    lowered = message.lower()
    if any(words in lowered for words in _NOT_READY):
        return ServerUnavailableError(
            "the server is not ready for this request",
            values=message,
            limit="all models must be loaded",
            remedy="wait for 'make ready', then read the server's log",
        )
    if is_client_fault or any(words in lowered for words in _FAULTS_OF_THE_REQUEST):
        return InvalidRequestError(
            "Triton refused the request",
            values=message,
            limit="inputs must be those of the model's config.pbtxt",
            remedy="check model name, inputs and the release of the client",
        )
    return EngineFailedError(
        "the server failed the request",
        values=message,
        limit="no further detail was sent",
        remedy="read the server's log",
    )


def unreachable(url: str, detail: str) -> ServerUnavailableError:
    """No server answers at ``url``, or it went away in mid-request."""
    return ServerUnavailableError(
        "no server answers",
        values=f"{url}: {detail}",
        limit="a ready Triton server is needed",
        remedy="start one with 'make serve' and wait for 'make ready'",
    )


def timed_out(what: str, limit_s: float) -> RequestTimeoutError:
    """A limit of ``Timeouts`` passed."""
    return RequestTimeoutError(
        f"the request took too long: {what}",
        values=f"waited {limit_s:g} s",
        limit="the client's own timeouts",
        remedy="ask for fewer tokens, wait until the server is less busy, or raise the timeout",
    )


def cancelled(detail: str) -> RequestCancelledError:
    """The call was cancelled, here or on the way."""
    return RequestCancelledError(
        "the request was cancelled",
        values=detail,
        limit="a cancelled request has no answer",
        remedy="send it again",
    )
