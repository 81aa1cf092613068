"""Reads answers of ``/v1/responses`` in the words of chats: each output item is a choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STREAMED = "streamed"
"""Name, beside the texts of a choice, of what the events of a stream added to its item."""

_LAST = ("response.completed", "response.incomplete")
_FAILED = ("response.failed", "error")


@dataclass(frozen=True)
class Part:
    """A part of an answer.

    Attributes:
        document: The part as a chunk of a chat has it.
        end: Why the answer ended; "" if it has not.
        has_failed: Whether the server reports an error.
    """

    document: Mapping[str, Any]
    end: str = ""
    has_failed: bool = False


def read_part(document: Mapping[str, Any]) -> Part:
    """Read a whole response, or an event of a stream.

    Raises:
        AttributeError: It is neither.
        KeyError: As above.
        TypeError: As above.
    """
    kind = document.get("type")
    if kind is None:
        return _whole(document)
    if kind in _LAST:
        return _whole(document["response"])
    if kind in _FAILED:
        return Part({"choices": ()}, has_failed=True)
    choices: tuple[dict[str, Any], ...] = ()
    if kind.endswith(".delta"):
        choices = ({"index": document["output_index"], "delta": {STREAMED: document["delta"]}},)
    return Part({"model": (document.get("response") or {}).get("model"), "choices": choices})


def _whole(response: Mapping[str, Any]) -> Part:
    status = response["status"]
    end = status if status == "completed" else ""
    if status == "incomplete":
        end = (response.get("incomplete_details") or {}).get("reason") or status
    items = response.get("output") or [{}]
    document = {
        "model": response.get("model"),
        "usage": {"completion_tokens": (response.get("usage") or {}).get("output_tokens")},
        "choices": [
            {"index": index, "message": _message(item), "finish_reason": end}
            for index, item in enumerate(items)
        ],
    }
    return Part(document, end, has_failed=bool(response.get("error")))


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call":
        return {"role": "assistant", "tool_calls": [{"index": 0, "function": item}]}
    contents = item.get("content") or ()
    text = "".join(content.get("text") or "" for content in contents)
    refusal = "".join(content.get("refusal") or "" for content in contents)
    name = "reasoning" if item.get("type") == "reasoning" else "content"
    summary = "".join(each.get("text") or "" for each in item.get("summary") or ())
    return {"role": "assistant", name: text + summary, "refusal": refusal}
