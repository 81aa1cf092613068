"""Checks ids, parameters and timeout of a request before any work is done for it.

Other limits are checked elsewhere: words in ``word_list``, the size of the prompt in ``preprocessing``,
``logit_bias`` and all ranges in ``speculation``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.serving.requests.inputs import Inputs, read_scalar
from pipelines.serving.triton.server_key import KEY_PARAMETER, ServerKey

MAX_ID_BYTES = 256  # for request ids, session ids and names of arms; a UUID has 36
MAX_PARAMETERS_BYTES = 16 * 1024  # all parameters as JSON; normally a few hundred bytes
MAX_TIMEOUT_US = 24 * 3600 * 1_000_000  # one day; Triton turns a negative number into a far larger one

_LONGEST_QUOTE = 80

# Parameters that Triton and its clients add themselves.
_TRANSPORT_PARAMETERS = frozenset(
    {
        *("id", "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"),
        KEY_PARAMETER,
    }
)


@dataclass(frozen=True)
class Header:
    """The metadata of a request.

    Attributes:
        client_id: The id chosen by the client; "" for none. Not unique: another client may use the same.
        timeout_us: The client's time limit in microseconds; 0 for none.
        is_ping: Whether this is a liveness probe.
    """

    client_id: str
    timeout_us: int
    is_ping: bool = False


def read_header(request: Any, known_inputs: Iterable[str], key: ServerKey) -> Header:
    """Read and check everything of a request except its tensors.

    Args:
        request: Triton's request.
        known_inputs: Names of the model's inputs.
        key: The server's key, which the request must carry.

    Raises:
        InvalidRequestError: The key is missing, the id is too long, a parameter is unknown, or the timeout is
            invalid.
    """
    client_id = _text_of(request.request_id, "the request's id")
    check_id("request id", client_id)
    given = _read_parameters(_text_of(request.parameters, "a parameter"))
    if key.check(given):
        return Header(client_id, 0, is_ping=True)
    _refuse_unknown(given, sorted(known_inputs))
    timeouts_us = [_checked_timeout(timeout) for timeout in (request.timeout(), given.get("timeout", 0))]
    return Header(client_id, next(filter(None, timeouts_us), 0))


def read_id(inputs: Inputs, name: str) -> str:
    """Return an input that holds an id; "" if it is absent.

    Raises:
        InvalidRequestError: It is too long or not UTF-8, or there are several values.
    """
    data: bytes = read_scalar(inputs, name, bytes, b"")
    check_id(name, data)
    return decode_utf8(data, name)


def check_id(name: str, value: str | bytes) -> None:
    """Refuse an id that is too long.

    Raises:
        InvalidRequestError: It is longer than ``MAX_ID_BYTES``.
    """
    num_bytes = len(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value)
    if num_bytes > MAX_ID_BYTES:
        raise InvalidRequestError(
            f"the {name} is too long",
            values=f"{num_bytes} bytes",
            limit=f"at most {MAX_ID_BYTES} bytes",
            remedy="send a shorter one, such as a UUID or a digest of the long one",
        )


def decode_utf8(data: bytes, name: str) -> str:
    """Decode a client's text.

    Raises:
        InvalidRequestError: The text is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from None


def _text_of(read: Callable[[], str], what: str) -> str:
    try:
        return read()
    except UnicodeDecodeError as error:
        raise _not_utf8(what, error) from None


def _not_utf8(what: str, error: UnicodeDecodeError) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what} is not valid UTF-8",
        values=f"byte 0x{error.object[error.start]:02x} at position {error.start}",
        limit="text must be UTF-8",
        remedy="encode it as UTF-8",
    )


def _read_parameters(text: str) -> dict[str, Any]:
    if len(text) > MAX_PARAMETERS_BYTES:
        raise InvalidRequestError(
            "the request's parameters are too long",
            values=f"{len(text)} characters of JSON",
            limit=f"at most {MAX_PARAMETERS_BYTES} for all of them together",
            remedy="send only inputs of the model; unknown parameters are refused rather than ignored",
        )
    given: dict[str, Any] = json.loads(text) if text else {}
    return given


def _refuse_unknown(given: Iterable[str], known: list[str]) -> None:
    """Refuse inputs that Triton did not recognise and would silently drop.

    Triton's HTTP ``generate`` endpoints turn every JSON key that is not an input of the model into a request
    parameter, so a misspelt ``temprature`` would otherwise be ignored.
    """
    for name in given:
        if name in _TRANSPORT_PARAMETERS or name.startswith("triton_") or name in known:
            continue
        quoted = name if len(name) <= _LONGEST_QUOTE else f"{name[:_LONGEST_QUOTE]}..."
        near = difflib.get_close_matches(name[:_LONGEST_QUOTE], known, n=1)
        raise InvalidRequestError(
            "the request has an unknown parameter",
            values=f"'{quoted}'" + (f"; did you mean '{near[0]}'?" if near else ""),
            limit=f"inputs: {', '.join(known)}",
            remedy="leave it out; unknown parameters are refused rather than ignored",
        )


def _checked_timeout(timeout: Any) -> int:
    if type(timeout) is int and 0 <= timeout <= MAX_TIMEOUT_US:
        return timeout
    raise InvalidRequestError(
        "timeout is invalid",
        values=f"timeout={timeout!r:.80}",
        limit=f"a whole number of microseconds, 1 to {MAX_TIMEOUT_US}, or 0 for no limit",
        remedy="send the time that you are willing to wait, such as 10000000 for 10 s, or leave it out",
    )
