"""Turns the items of ``/v1/responses`` into messages of chat, and into items that can be kept.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from pydantic import JsonValue

from pipelines.errors import InvalidRequestError
from pipelines.front_door.requests.conversation import Message

_ID_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}


def messages_of(items: JsonValue) -> list[Message]:
    """Return the messages of chat that items mean.

    Thoughts, text and calls of the assistant that follow each other become one message.

    Args:
        items: A text of the user, or a list of items.

    Raises:
        InvalidRequestError: An item has another type than those that are read.
    """
    if isinstance(items, str):
        return [said("user", items)]
    if not isinstance(items, list):
        raise _wrong_item("input", items)
    messages: list[Message] = []
    for number, item in enumerate(items):
        name = f"input[{number}]"
        if not isinstance(item, dict):
            raise _wrong_item(name, item)
        kind = item.get("type", "message")
        if kind == "message":
            message = said(item.get("role"), item.get("content"))
            if item.get("role") == "assistant" and _is_open(messages):
                messages[-1] |= message
            else:
                messages.append(message)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            messages.append({**said("tool", item.get("output")), "tool_call_id": item.get("call_id")})
        elif kind in ("function_call", "custom_tool_call"):
            arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
            function: JsonValue = {"name": item.get("name"), "arguments": arguments}
            _add_call(messages, {"id": item.get("call_id"), "type": "function", "function": function})
        elif kind == "reasoning":
            messages.append({"role": "assistant", "content": "", "reasoning_content": _thoughts(item)})
        else:
            raise _wrong_item(f"{name}.type", kind)
    return messages or [said("user", "")]  # clients try a server with an empty list


def said(role: JsonValue, content: JsonValue) -> Message:
    """Return a message."""
    return {"role": role, "content": content}


def with_ids(given: JsonValue) -> JsonValue:
    """Return ``input`` as items with ids, whose contents are parts; what is none is left for an error."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    return [_with_id(each) if isinstance(each, dict) else each for each in given]


def _with_id(given: dict[str, JsonValue]) -> JsonValue:
    kind = given.get("type", "message")
    prefix = _ID_PREFIXES.get(str(kind), "item")
    told = {name: value for name, value in given.items() if value is not None}
    item = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind, "status": "completed", **told}
    if kind == "message" and isinstance(text := given.get("content"), str):
        is_said = given.get("role") == "assistant"
        part: dict[str, JsonValue] = {"type": "output_text" if is_said else "input_text", "text": text}
        item["content"] = [{**part, **({"annotations": [], "logprobs": []} if is_said else {})}]
    return item


def _is_open(messages: list[Message]) -> bool:
    """Return whether the last message has only thoughts."""
    return bool(messages) and "reasoning_content" in messages[-1] and not messages[-1]["content"]


def _add_call(messages: list[Message], call: JsonValue) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append(said("assistant", ""))
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _thoughts(item: Mapping[str, JsonValue]) -> JsonValue:
    """Return the text of a reasoning item, else of its summary."""
    for parts in (item.get("content"), item.get("summary")):
        if isinstance(parts, list) and parts:
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    return ""


def _wrong_item(name: str, found: JsonValue) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name}={found!r:.200} is neither a text nor an item of type message, function_call, "
        "custom_tool_call, the outputs of both, or reasoning",
        "send such items, not their ids",
    )
