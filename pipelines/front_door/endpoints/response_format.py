"""Writes a response and its events as ``/v1/responses`` has them.

The order of events is that of https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipelines.front_door.answering import Event, Format
from pipelines.front_door.messages.message import CallArguments, CallBegin, Content, Part, Thought
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import ThoughtTokens
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

_TEXT_EVENTS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}
_NO_LOG_PROBS: dict[str, dict[str, Any]] = {"message": {"logprobs": []}, "reasoning": {}}


class ResponseFormat(Format):
    """Writes the answer to one request, item by item.

    Args:
        fields: What the response repeats of the request.
        model: The model.
        asked: The request to the model.
        reader: Reads the answer.
        keep: Keeps the response before a client knows that it is complete.
    """

    def __init__(
        self,
        fields: Mapping[str, Any],
        model: ServedModel,
        asked: CompletionRequest,
        reader: MessageReader,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._asked, self._reader, self._keep = asked, reader, keep
        self._thoughts = ThoughtTokens(model)
        self._has_begun = self._has_thoughts = False
        self._num_events = 0
        self._open: dict[str, Any] | None = None  # the item that parts are added to
        self._response: dict[str, Any] = {
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
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "seed": asked.seed,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "top_logprobs": 0,
            "service_tier": "default",
            **fields,
        }

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        list(self.events(0, answers[0]))
        return self._response

    def events(self, number: int, chunk: Chunk) -> Iterator[Event]:
        """Yield the events for a chunk of the answer, the first with those that begin the response."""
        yield from self._begin()
        self._thoughts.add(chunk.output_ids)
        for part in self._reader.read(chunk.text, is_last=chunk.is_last):
            yield from self._add(part)
        if chunk.is_last:
            if chunk.continued_elsewhere:
                self._response["continued_elsewhere"] = True
            ending = list(self._end(chunk))
            self._keep(self._response)
            yield from ending

    def sign(self) -> Iterable[Event]:
        """Return the events that begin the response, or its state: Codex counts no comments."""
        return list(self._begin()) or [self._of_response("in_progress")]

    def _begin(self) -> Iterator[Event]:
        if not self._has_begun:
            self._has_begun = True
            yield self._of_response("created")
            yield self._of_response("in_progress")

    def _add(self, part: Part) -> Iterator[Event]:
        match part:
            case Thought(text):
                self._has_thoughts = True
                yield from self._add_text("reasoning", text)
            case Content(text):
                yield from self._add_text("message", text)
            case CallBegin(call_id, name):
                yield from self._close("completed")
                call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
                yield from self._begin_item({"id": f"fc_{secrets.token_hex(12)}", **call})
            case CallArguments(text):
                assert self._open is not None
                self._open["arguments"] += text
                yield self._event("response.function_call_arguments.delta", **self._place(), delta=text)

    def _add_text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close("completed")
            yield from self._begin_item(_new_text_item(kind))
            assert self._open is not None
            self._open["content"] = [_new_text_part(kind)]
            yield self._event("response.content_part.added", **self._place(), part=_new_text_part(kind))
        assert self._open is not None
        self._open["content"][0]["text"] += text
        yield self._event(f"{_TEXT_EVENTS[kind]}.delta", **self._place(), delta=text, **_NO_LOG_PROBS[kind])

    def _begin_item(self, item: dict[str, Any]) -> Iterator[Event]:
        self._open = {**item, "status": "in_progress"}
        self._response["output"].append(self._open)
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
            yield self._event(f"{_TEXT_EVENTS[kind]}.done", **place, text=part["text"], **_NO_LOG_PROBS[kind])
            yield self._event("response.content_part.done", **place, part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=self._index, item=copy.deepcopy(item))
        self._open = None

    def _end(self, chunk: Chunk) -> Iterator[Event]:
        is_whole = chunk.finish_reason == "stop"
        status = "completed" if is_whole else "incomplete"
        yield from self._close(status)
        num_prompt, num_output = len(self._asked.prompt_ids), chunk.sequence_length
        self._response |= {
            "status": status,
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "completed_at": int(time.time()) if is_whole else None,
            "usage": {
                "input_tokens": num_prompt,
                "input_tokens_details": {"cached_tokens": chunk.num_cached, "cache_write_tokens": 0},
                "output_tokens": num_output,
                "output_tokens_details": {
                    "reasoning_tokens": self._thoughts.number if self._has_thoughts else 0
                },
                "total_tokens": num_prompt + num_output,
            },
        }
        yield self._of_response(status)

    @property
    def _index(self) -> int:
        return len(self._response["output"]) - 1

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": self._index}
        return place if self._open["type"] == "function_call" else {**place, "content_index": 0}

    def _of_response(self, what: str) -> Event:
        return self._event(f"response.{what}", response=copy.deepcopy(self._response))

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
