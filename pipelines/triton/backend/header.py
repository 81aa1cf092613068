"""Reads everything of a request from Triton except its tensors, and checks that it came through the gateway.

The gateway adds the server's key as a request parameter, because parameters also reach the steps of an
ensemble (tested with Triton 2.51). Each model checks the key itself: Triton's own restricted APIs have been
bypassed before (CVE-2026-24207).
"""

from __future__ import annotations

import difflib
import hmac
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pipelines.errors import InvalidRequestError, ServerStartError

OWN_PREFIX = "draftproof_"
"""Prefix of request parameters that only the gateway may send: the key, the mark of a ping, an arm."""

KEY_PARAMETER = f"{OWN_PREFIX}key"
PING_PARAMETER = f"{OWN_PREFIX}ping"
ARM_PARAMETER = f"{OWN_PREFIX}arm"
VARIABLE = "DRAFTPROOF_KEY"

MAX_PARAMETERS_BYTES = 16 * 1024  # all parameters as JSON; normally a few hundred bytes
MAX_TIMEOUT_US = 24 * 3600 * 1_000_000  # one day; Triton turns a negative number into a far larger one

_LONGEST_QUOTE = 80

# Parameters that Triton, its clients and the gateway add themselves.
_TRANSPORT_PARAMETERS = frozenset(
    {
        *("id", "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"),
        *(KEY_PARAMETER, ARM_PARAMETER),
    }
)


@dataclass(frozen=True)
class Header:
    """The metadata of a request.

    Attributes:
        client_id: The id chosen by the client; "" for none. Not unique: another client may use the same.
        timeout_us: The client's time limit in microseconds; 0 for none.
        is_ping: Whether this is a liveness probe.
        arm: The arm that must answer, by the name under which the client asked; "" for no such.
    """

    client_id: str
    timeout_us: int
    is_ping: bool = False
    arm: str = ""


def server_key() -> str:
    """Return the server's key, which the gateway puts into the environment of Triton's processes.

    Raises:
        ServerStartError: There is none: Triton was not started by the gateway.
    """
    key = os.environ.get(VARIABLE, "")
    if not key:
        raise ServerStartError(
            f"{VARIABLE} is not set, as it is where the gateway starts Triton",
            "start the server with 'draftproof serve' or 'draftproof run'",
        )
    return key


def read_header(request: Any, known_inputs: Iterable[str], key: str) -> Header:
    """Read and check everything of a request except its tensors.

    Args:
        request: Triton's request.
        known_inputs: Names of the model's inputs.
        key: The server's key, which the request must carry.

    Raises:
        InvalidRequestError: The key is missing, a parameter is unknown, or the timeout is invalid.
    """
    client_id = request.request_id()
    text = request.parameters()
    if len(text) > MAX_PARAMETERS_BYTES:
        raise InvalidRequestError(
            f"the request's parameters have {len(text)} characters of JSON, more than {MAX_PARAMETERS_BYTES}",
            "send only inputs of the model; unknown parameters are refused rather than ignored",
        )
    given: dict[str, Any] = json.loads(text) if text else {}
    _check_key(given.get(KEY_PARAMETER), key)
    if PING_PARAMETER in given:
        return Header(client_id, 0, is_ping=True)
    _refuse_unknown(given, sorted(known_inputs))
    timeouts_us = [_checked_timeout(timeout) for timeout in (request.timeout(), given.get("timeout", 0))]
    arm = str(given.get(ARM_PARAMETER, ""))
    return Header(client_id, next(filter(None, timeouts_us), 0), arm=arm)


def _check_key(given: object, key: str) -> None:
    is_known = isinstance(given, str) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), key.encode()
    )
    if not is_known:
        raise InvalidRequestError(
            "the request did not come through the gateway: the server's key is missing or wrong",
            "send requests to the server's HTTP or gRPC port",
        )


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
            f"the request has an unknown parameter '{quoted}'"
            + (f"; did you mean '{near[0]}'?" if near else f"; inputs are {', '.join(known)}"),
            "leave it out; unknown parameters are refused rather than ignored",
        )


def _checked_timeout(timeout: Any) -> int:
    if type(timeout) is int and 0 <= timeout <= MAX_TIMEOUT_US:
        return timeout
    raise InvalidRequestError(
        f"timeout={timeout!r:.80} is no whole number of microseconds from 0 to {MAX_TIMEOUT_US}",
        "send the time you are willing to wait, such as 10000000 for 10 s, or leave it out",
    )
