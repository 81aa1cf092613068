"""Defines an attack and its reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True)
class Reply:
    """The reply to an attack.

    ``status``: HTTP status or name of the gRPC code; ``closed`` or ``silent`` if there was none.
    """

    status: str
    text: str = ""


@dataclass(frozen=True)
class Attack:
    """One request of a hostile client.

    ``send``: sends it to the server at an address and returns the reply; raises nothing that the server
    caused.
    """

    name: str
    send: Callable[[Address], Reply]
