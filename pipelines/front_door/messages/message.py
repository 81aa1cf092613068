"""The parts of an assistant's message as they arrive, and the message as ``/v1/chat/completions`` has it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pydantic_core import from_json

THINK_BEGIN, THINK_END = "<think>", "</think>"


class Thinking(Enum):
    """Tells whether an answer begins with thoughts.

    Attributes:
        NONE: The answer has no thoughts: the prompt has closed them, or the model has none.
        POSSIBLE: It may begin with thoughts.
        BEGUN: The prompt has opened them, so it begins inside.
    """

    NONE = "none"
    POSSIBLE = "possible"
    BEGUN = "begun"


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Content:
    """A piece of the answer's text."""

    text: str


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


class MessageDocument:
    """One message, part by part.

    Thoughts stand in ``reasoning_content`` and, as newer versions of vLLM name it, in ``reasoning``.

    Attributes:
        document: The message so far.
    """

    def __init__(self) -> None:
        self.document: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}

    @property
    def has_thoughts(self) -> bool:
        """Whether the model has thought."""
        return "reasoning" in self.document

    @property
    def has_calls(self) -> bool:
        """Whether a tool call has begun."""
        return "tool_calls" in self.document

    def add(self, part: Part) -> dict[str, Any]:
        """Add a part to the message and return it as a delta."""
        message = self.document
        if not isinstance(part, Content):
            message["content"] = message["content"] or None
        match part:
            case Thought(text):
                message["reasoning"] = message["reasoning_content"] = message.get("reasoning", "") + text
                return {"reasoning_content": text, "reasoning": text}
            case Content(text):
                message["content"] = (message["content"] or "") + text
                return {"content": text}
            case CallBegin(call_id, name):
                calls = message.setdefault("tool_calls", [])
                function = {"name": name, "arguments": ""}
                calls.append({"id": call_id, "type": "function", "function": function})
                call = {"index": len(calls) - 1, "id": call_id, "type": "function"}
                return {"tool_calls": [{**call, "function": dict(function)}]}
            case CallArguments(text):
                calls = message["tool_calls"]
                calls[-1]["function"]["arguments"] += text
                return {"tool_calls": [{"index": len(calls) - 1, "function": {"arguments": text}}]}


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; of those that are cut off what is there.

    JSON that no client could read, such as half of a surrogate pair, stays a text in the object.
    """
    try:
        found = from_json(text or "{}", allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": text}
