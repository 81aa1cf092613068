"""Defines an attack, its reply, and what Triton's embedded server did with it unprotected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

Address = tuple[str, int]
"""Host and port."""


class Alone(Enum):
    """The effect of an attack on Triton 2.51.0 with nothing in front of it, tried on 2026-11-22."""

    KILLED = "the server's process ended, or stands still while it reports its crash"
    BROKE = "a model's process ended, or answers no more"
    OBEYED = "it did what no client may ask for"
    GREW = "it spent far more memory or time than the request is worth"
    WAITED = "it kept the connection for as long as was tried"
    ANSWERED = "it answered, and nothing else happened"
    REFUSED = "it refused with an error, and nothing else happened"


@dataclass(frozen=True)
class Reply:
    """The reply to an attack.

    Attributes:
        status: HTTP status or name of the gRPC code; ``closed`` or ``silent`` if there was none.
        text: Beginning of the body or message.
    """

    status: str
    text: str = ""


@dataclass(frozen=True)
class Attack:
    """One request of a hostile client.

    Attributes:
        name: Its name in tests and documents.
        send: Sends it to the server at an address and returns the reply; raises nothing that the server
            caused.
        alone: What an unprotected Triton did with it.
    """

    name: str
    send: Callable[[Address], Reply]
    alone: Alone
