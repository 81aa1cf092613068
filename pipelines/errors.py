"""Defines all errors that Draftproof raises on purpose.

Each error has two parts, so that its reader can act without reading code, and is raised on one line or two:
``raise CheckpointError(f"{path} has {size} bytes, and its header calls for {wanted}", "download it again")``.
The message is one clause that says what happened, with the values that were seen and, where it does not go
without saying, the limit that they broke; the remedy is an order that the reader can follow.

Triton's error responses are plain text: ``to_wire`` turns an error into text, and ``from_wire`` turns the
text back into an equal error on the client's side.

::

    DraftproofError
    ├── RecipeError               a recipe file cannot be used
    ├── CheckpointError           a checkpoint is missing, corrupt or in an unsupported format
    ├── IncompatiblePairError     draft and target cannot work together
    ├── EngineBuildError          an engine could not be compiled
    ├── EngineLoadError           an engine on disk is absent, changed or of another version
    ├── PackageError              a package is not the one that was made, or not signed by the right key
    ├── RepositoryError           the model repository could not be rendered, or one of its models not loaded
    ├── InvalidRequestError       a request parameter is out of range
    │   ├── PromptTooLongError    prompt and max_tokens exceed the engine's sequence length
    │   ├── ChatTemplateError     the model has no chat template, or it refuses the conversation
    │   ├── NothingAllowedError   bad words, a grammar and other limits leave no token
    │   ├── ModelNotFoundError    no model of this name is served
    │   └── ResponseNotFoundError no response of this id is kept for this API key
    ├── UnauthorizedError         the request has no valid API key
    ├── ForbiddenError            the request comes from a web page of another site, or lacks a right
    ├── RateLimitError            this API key sends too much; wait as long as Retry-After says
    ├── ServerBusyError           the queue is full; try again later
    ├── RequestTimeoutError       the request's deadline passed
    ├── RequestCancelledError     the client disconnected or cancelled
    ├── EngineFailedError         an engine step failed while serving
    │   ├── RequestRefusedError   an engine refused one request; others continue
    │   └── ProcessEndedError     the engine's process ended; it is replaced within seconds
    ├── TransportError            a call between two models of the server was garbled
    ├── ServerUnavailableError    no server answers at the address
    ├── ServerStartError          Triton did not become ready
    │   └── PortInUseError        another process listens on a port we need
    ├── PeerError                 another engine could not be installed, started or queried
    ├── VerificationError         a proof could not be completed
    ├── CanaryError               a rollout could not be started, resumed or judged
    └── InternalError             a bug in Draftproof; details are in the server's log
"""

from __future__ import annotations

import re
from typing import ClassVar

_WIRE = re.compile(r"draftproof/(?P<code>[a-z_]+): (?P<text>.*)", re.DOTALL)

_LONGEST_PART = 1000  # characters: what a client sent may be quoted in an error, and be of any length
_SEPARATOR = "; "


class DraftproofError(Exception):
    """Base class of all errors.

    Attributes:
        message: What happened and with which values: one clause without a full stop.
        remedy: What the reader can do about it.
    """

    code: ClassVar[str] = "error"
    """Its name for programs: that of the class, such as ``server_busy`` of ``ServerBusyError``."""

    def __init_subclass__(cls) -> None:
        """Derive the code."""
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(_SEPARATOR.join(part for part in (message, remedy) if part))

    def to_wire(self) -> str:
        """Return the error as text for ``from_wire``: ``draftproof/<code>: message; remedy``.

        A semicolon inside a part is doubled. Long parts are cut.
        """
        parts = [self.message, *filter(None, [self.remedy])]
        return f"draftproof/{self.code}: {_SEPARATOR.join(_cut(part).replace(';', ';;') for part in parts)}"


class RecipeError(DraftproofError):
    """A recipe file cannot be used: unknown key, wrong type or value."""


class CheckpointError(DraftproofError):
    """A checkpoint is missing, truncated, corrupt or in an unsupported format."""


class IncompatiblePairError(DraftproofError):
    """Draft and target cannot work together, for instance because they have too few tokens in common."""


class EngineBuildError(DraftproofError):
    """An engine could not be compiled."""


class EngineLoadError(DraftproofError):
    """An engine on disk is absent, changed since its build, or of another version."""


class PackageError(DraftproofError):
    """A package of a pair is incomplete, changed, of another version, or not signed with the demanded key."""


class RepositoryError(DraftproofError):
    """The model repository could not be rendered, or one of its models not loaded."""


class InvalidRequestError(DraftproofError):
    """A request parameter is missing, malformed or out of range."""


class PromptTooLongError(InvalidRequestError):
    """Prompt and ``max_tokens`` together exceed the engine's sequence length."""


class ChatTemplateError(InvalidRequestError):
    """The model has no chat template, or its template does not render the conversation."""


class NothingAllowedError(InvalidRequestError):
    """Bad words, ``min_tokens`` and the grammar together leave no token that may come next."""


class ModelNotFoundError(InvalidRequestError):
    """No model of this name is served."""


class ResponseNotFoundError(InvalidRequestError):
    """No response of this id is kept for this API key, or not any more."""


class UnauthorizedError(DraftproofError):
    """The request has no valid API key."""


class ForbiddenError(DraftproofError):
    """The request comes from a web page of another site, by an unknown name, or lacks a right."""


class RateLimitError(DraftproofError):
    """The API key has reached one of its limits; the request can be sent again later."""


class ServerBusyError(DraftproofError):
    """The queue is full: the request was refused without waiting and can be sent again later."""


class RequestTimeoutError(DraftproofError):
    """The request's deadline passed before its last token."""


class RequestCancelledError(DraftproofError):
    """The client disconnected or cancelled the request."""


class EngineFailedError(DraftproofError):
    """An engine step failed while serving."""


class RequestRefusedError(EngineFailedError):
    """An engine refused one request; others continue."""


class ProcessEndedError(EngineFailedError):
    """The engine's process ended and is replaced within seconds; the request can be sent again."""

    took_request = False
    """Whether the process had taken the request, which may then be the cause."""


class TransportError(DraftproofError):
    """A call between two models of the server was garbled in transit."""


class ServerUnavailableError(DraftproofError):
    """No server answers at the address."""


class ServerStartError(DraftproofError):
    """The Triton server did not become ready."""


class PortInUseError(ServerStartError):
    """Another process listens on a port that the server needs."""


class PeerError(DraftproofError):
    """An engine that ours is compared with could not be installed, started or queried."""


class VerificationError(DraftproofError):
    """A proof could not be completed, so it proves nothing."""


class CanaryError(DraftproofError):
    """A rollout could not be started, resumed or judged; the pair in service is unchanged."""


class InternalError(DraftproofError):
    """A bug in Draftproof; the details are in the server's log, never in the message."""


def _cut(part: str) -> str:
    return part if len(part) <= _LONGEST_PART else f"{part[:_LONGEST_PART]}..."


def _all_errors(root: type[DraftproofError]) -> dict[str, type[DraftproofError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_all_errors(child))
    return found


def from_wire(message: str) -> DraftproofError | None:
    """Rebuild the error that a server sent.

    Args:
        message: Text of a Triton error response; Triton may have added a prefix.

    Returns:
        An error of the same class and with the same parts as the one that the server raised; None if the text
        does not come from Draftproof.
    """
    match = _WIRE.search(message)
    if match is None:
        return None
    kind = _all_errors(DraftproofError).get(match["code"], DraftproofError)
    message, *remedy = _split(match["text"])
    return kind(message, _SEPARATOR.join(remedy))


def _split(text: str) -> list[str]:
    parts: list[list[str]] = [[]]
    for token in re.findall(r";;|; |;|[^;]+", text):
        if token == _SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(";" if token == ";;" else token)
    return ["".join(part) for part in parts]
