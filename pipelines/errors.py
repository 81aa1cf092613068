"""Every error Draftproof raises on purpose, in one tree.

Each error has four parts, so that whoever reads it can act without reading code:
what went wrong, the values seen, the limit they broke, the remedy. ``to_wire`` and
``from_wire`` carry an error through Triton, whose error responses are plain text, and
give the client the same class that the server raised.

::

    DraftproofError
    ├── RecipeError               a recipe file cannot be used
    ├── CheckpointError           a checkpoint is missing, corrupt or of another form
    ├── IncompatiblePairError     draft and target cannot work together
    ├── EngineBuildError          an engine could not be compiled
    ├── EngineLoadError           an engine on disk is absent, changed or of another version
    ├── RepositoryError           the model repository could not be rendered
    ├── InvalidRequestError       a request parameter is out of range
    │   └── PromptTooLongError    prompt and max_tokens exceed the engine's sequence length
    ├── ServerBusyError           the queue is full; try again later
    ├── RequestTimeoutError       the request's deadline passed
    ├── RequestCancelledError     the client went away or cancelled
    ├── EngineFailedError         an engine step failed while serving
    ├── ServerUnavailableError    no server answers at the address
    ├── ServerStartError          Triton did not become ready
    │   └── PortInUseError        another process listens on a port we need
    ├── PeerError                 another engine could not be installed, started or asked
    ├── VerificationError         a proof could not be carried out
    ├── CanaryError               a rollout could not be begun, continued or judged
    └── InternalError             a defect of ours; details are in the server's log
"""

from __future__ import annotations

import re
from typing import ClassVar

_WIRE = re.compile(r"draftproof/(?P<code>[a-z_]+): (?P<text>.*)", re.DOTALL)


class DraftproofError(Exception):
    """Base of the tree.

    Args:
        what: What went wrong, one clause without a full stop.
        values: The values that were seen, such as ``num_draft_tokens=12``.
        limit: The limit or rule that they broke.
        remedy: What the reader can do about it.
    """

    code: ClassVar[str] = "error"

    def __init__(self, what: str, *, values: str = "", limit: str = "", remedy: str = "") -> None:
        self.what = what
        self.values = values
        self.limit = limit
        self.remedy = remedy
        super().__init__("; ".join(part for part in (what, values, limit, remedy) if part))

    def to_wire(self) -> str:
        """The error as one line of text that ``from_wire`` turns back into its class."""
        return f"draftproof/{self.code}: {self}"


class RecipeError(DraftproofError):
    """A recipe file cannot be used: unknown key, wrong type or value."""

    code = "recipe"


class CheckpointError(DraftproofError):
    """A checkpoint is missing, truncated, corrupt or of an unsupported form."""

    code = "checkpoint"


class IncompatiblePairError(DraftproofError):
    """Draft and target cannot work together, for instance because their tokenizers differ."""

    code = "incompatible_pair"


class EngineBuildError(DraftproofError):
    """An engine could not be compiled."""

    code = "engine_build"


class EngineLoadError(DraftproofError):
    """An engine on disk is absent, changed since its build, or of another version."""

    code = "engine_load"


class RepositoryError(DraftproofError):
    """The model repository could not be rendered."""

    code = "repository"


class InvalidRequestError(DraftproofError):
    """A request parameter is missing, malformed or out of range."""

    code = "invalid_request"


class PromptTooLongError(InvalidRequestError):
    """Prompt and ``max_tokens`` together exceed the engine's sequence length."""

    code = "prompt_too_long"


class ServerBusyError(DraftproofError):
    """The queue is full: the request was refused at once and can be sent again later."""

    code = "server_busy"


class RequestTimeoutError(DraftproofError):
    """The request's deadline passed before its last token."""

    code = "request_timeout"


class RequestCancelledError(DraftproofError):
    """The client disconnected or cancelled the request."""

    code = "request_cancelled"


class EngineFailedError(DraftproofError):
    """An engine step failed while serving."""

    code = "engine_failed"


class ServerUnavailableError(DraftproofError):
    """No server answers at the address."""

    code = "server_unavailable"


class ServerStartError(DraftproofError):
    """The Triton server did not become ready."""

    code = "server_start"


class PortInUseError(ServerStartError):
    """Another process listens on a port that the server needs."""

    code = "port_in_use"


class PeerError(DraftproofError):
    """An engine that ours is compared with could not be installed, started or asked."""

    code = "peer"


class VerificationError(DraftproofError):
    """A proof could not be carried out, so it proves nothing."""

    code = "verification"


class CanaryError(DraftproofError):
    """A rollout could not be begun, continued or judged; what serves is left as it was."""

    code = "canary"


class InternalError(DraftproofError):
    """A defect of Draftproof itself; the details are in the server's log, never in the message."""

    code = "internal"


def _all_errors(root: type[DraftproofError]) -> dict[str, type[DraftproofError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_all_errors(child))
    return found


def from_wire(message: str) -> DraftproofError | None:
    """Rebuild the error that a server sent.

    Args:
        message: Text of a Triton error response; Triton may have put words of its own before ours.

    Returns:
        An error of the class the server raised, its four parts joined in ``what``; None if the text
        does not come from Draftproof.
    """
    match = _WIRE.search(message)
    if match is None:
        return None
    return _all_errors(DraftproofError).get(match["code"], DraftproofError)(match["text"].strip())
