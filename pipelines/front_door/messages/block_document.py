"""Writes an answer and its events as ``/v1/messages`` has them.

The order of events is that of Anthropic's API: https://docs.claude.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.front_door.messages.message import (
    CallArguments,
    CallBegin,
    Content,
    Part,
    Thought,
    read_arguments,
)

Event = dict[str, Any]


class BlockDocument:
    """One answer, part by part.

    Attributes:
        document: The answer so far.

    Args:
        fields: Further fields of the answer, such as ``model``.
        signature: Stands in blocks of thoughts, which clients expect to be signed.
    """

    def __init__(self, fields: Mapping[str, Any], signature: str) -> None:
        self.document: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            **fields,
        }
        self._signature = signature
        self._arguments = ""  # JSON of the call that is open
        self._is_open = False

    def begin(self) -> Iterator[Event]:
        """Yield the events before the first part."""
        yield {"type": "message_start", "message": copy.deepcopy(self.document)}
        yield {"type": "ping"}

    def add(self, part: Part) -> Iterator[Event]:
        """Add a part and yield its events."""
        match part:
            case Thought(text):
                yield from self._add_text("thinking", "thinking", text, {"signature": ""})
            case Content(text, _):
                yield from self._add_text("text", "text", text, {"citations": None})
            case CallBegin(call_id, name):
                yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(text):
                self._arguments += text
                yield self._delta("input_json", "partial_json", text)

    def end(self, reason: str, stop_sequence: str | None, usage: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events after the last part.

        Args:
            reason: Why the answer ends.
            stop_sequence: The stop word that ended it; None for none.
            usage: Numbers of tokens.
        """
        yield from self._close()
        ending = {"stop_reason": reason, "stop_sequence": stop_sequence}
        self.document |= {**ending, "usage": usage}
        yield {"type": "message_delta", "delta": ending, "usage": usage}
        yield {"type": "message_stop"}

    def _add_text(self, kind: str, key: str, text: str, fields: dict[str, Any]) -> Iterator[Event]:
        if not self._is_open or self._last["type"] != kind:
            yield from self._begin({"type": kind, key: "", **fields})
        self._last[key] += text
        yield self._delta(kind, key, text)

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self.document["content"].append(block)
        self._is_open = True
        yield self._event("start", content_block=dict(block))

    def _close(self) -> Iterator[Event]:
        if not self._is_open:
            return
        if self._last["type"] == "thinking":
            self._last["signature"] = self._signature
            yield self._delta("signature", "signature", self._signature)
        elif self._last["type"] == "tool_use":
            self._last["input"], self._arguments = read_arguments(self._arguments), ""
        self._is_open = False
        yield self._event("stop")

    @property
    def _last(self) -> dict[str, Any]:
        last: dict[str, Any] = self.document["content"][-1]
        return last

    def _delta(self, kind: str, key: str, text: str) -> Event:
        return self._event("delta", delta={"type": f"{kind}_delta", key: text})

    def _event(self, what: str, **fields: Any) -> Event:
        return {"type": f"content_block_{what}", "index": len(self.document["content"]) - 1, **fields}
