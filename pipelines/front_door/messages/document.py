"""Writes a message and its deltas as ``/v1/chat/completions`` has them."""

from __future__ import annotations

from typing import Any

from pipelines.front_door.messages.parts import CallArguments, CallBegin, Content, Part, Thought


class MessageDocument:
    """One message, part by part.

    Thoughts stand in ``reasoning_content`` and, as newer versions of vLLM name it, in ``reasoning``.

    Attributes:
        document: The message so far.
    """

    def __init__(self) -> None:
        self.document: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}

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
            case Content(text, _):
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
