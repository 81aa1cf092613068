"""The parts of an assistant's message, as they arrive."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer's text.

    Attributes:
        text: The piece.
        place: Characters of all that the model wrote before it.
    """

    text: str
    place: int


@dataclass(frozen=True)
class CallBegin:
    """A tool call begins.

    Attributes:
        id: Id of the call, which the message with its result names.
        name: Name of the function.
    """

    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the JSON of the arguments of the call that began last."""

    text: str


Part = Thought | Content | CallBegin | CallArguments
