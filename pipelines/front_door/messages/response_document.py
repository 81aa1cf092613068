"""Writes a response and its events as ``/v1/responses`` has them.

The order of events is that of OpenAI's API: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pipelines.front_door.messages.message import CallArguments, CallBegin, Content, Part, Thought

Event = dict[str, Any]

_TEXT_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


class ResponseDocument:
    """One response, part by part.

    Attributes:
        document: The response so far.

    Args:
        fields: The request's fields that the response repeats, and others.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.document: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "completed_at": None,
            "background": False,
            "output": [],
            "usage": None,
            **fields,
        }
        self._num_events = 0
        self._open: dict[str, Any] | None = None  # the item that parts are added to

    def begin(self) -> Iterator[Event]:
        """Yield the events before the first part."""
        yield self._of_response("created")
        yield self.state()

    def state(self) -> Event:
        """Return the event of a response in progress."""
        return self._of_response("in_progress")

    def add(self, part: Part, log_probs: Sequence[dict[str, Any]] = ()) -> Iterator[Event]:
        """Add a part and yield its events.

        Args:
            part: The part.
            log_probs: What is told of the tokens of a piece of text.
        """
        match part:
            case Thought(text):
                yield from self._add_text("reasoning", text)
            case Content(text, _):
                yield from self._add_text("message", text, logprobs=list(log_probs))
            case CallBegin(call_id, name):
                yield from self._close("completed")
                call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
                yield from self._begin_item({"id": f"fc_{secrets.token_hex(12)}", **call})
            case CallArguments(text):
                assert self._open is not None
                self._open["arguments"] += text
                yield self._event("response.function_call_arguments.delta", **self._place(), delta=text)

    def end(self, finish_reason: str, usage: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events after the last part.

        Args:
            finish_reason: "stop" or "length".
            usage: Numbers of tokens.
        """
        is_whole = finish_reason == "stop"
        status: Literal["completed", "incomplete"] = "completed" if is_whole else "incomplete"
        yield from self._close(status)
        self.document |= {
            "status": status,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "completed_at": int(time.time()) if is_whole else None,
            "usage": dict(usage),
        }
        yield self._of_response(status)

    def _add_text(self, kind: str, text: str, **details: list[dict[str, Any]]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close("completed")
            yield from self._begin_item(_new_text_item(kind))
            assert self._open is not None
            self._open["content"] = [_new_text_part(kind)]
            yield self._event("response.content_part.added", **self._place(), part=_new_text_part(kind))
        assert self._open is not None
        part = self._open["content"][0]
        part["text"] += text
        for name, values in details.items():
            part[name] += values
        yield self._event(f"{_TEXT_EVENTS[kind]}.delta", **self._place(), delta=text, **details)

    def _begin_item(self, item: dict[str, Any]) -> Iterator[Event]:
        self._open = {**item, "status": "in_progress"}
        self.document["output"].append(self._open)
        yield self._event("response.output_item.added", output_index=self._index, item=dict(self._open))

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        kind, place = item["type"], self._place()
        if kind == "function_call":
            whole = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event(f"{_TEXT_EVENTS[kind]}.done", **place, **whole)
        else:
            part = copy.deepcopy(item["content"][0])
            details = {"logprobs": part["logprobs"]} if kind == "message" else {}
            yield self._event(f"{_TEXT_EVENTS[kind]}.done", **place, text=part["text"], **details)
            yield self._event("response.content_part.done", **place, part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=self._index, item=copy.deepcopy(item))
        self._open = None

    @property
    def _index(self) -> int:
        return len(self.document["output"]) - 1

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": self._index}
        return place if self._open["type"] == "function_call" else {**place, "content_index": 0}

    def _of_response(self, what: str) -> Event:
        return self._event(f"response.{what}", response=copy.deepcopy(self.document))

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}


def _new_text_item(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"id": f"rs_{secrets.token_hex(12)}", "type": kind, "summary": [], "content": []}
    return {"id": f"msg_{secrets.token_hex(12)}", "type": kind, "role": "assistant", "content": []}


def _new_text_part(kind: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
