"""Turns messages and tools of Anthropic's API, whose contents are blocks, into those of chat.

Source: https://docs.claude.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.tools import Function, Tool
from pipelines.front_door.requests.conversation import Message

_ROLES = ("user", "assistant", "system")
_CHOICES: dict[JsonValue, str] = {"auto": "auto", "any": "required", "none": "none"}
_BILLING = "x-anthropic-billing-header:"
"""Begins a block of Claude Code's that differs in each request, so that no two prompts would begin alike."""

_THOUGHTS = "reasoning_content"
_READABLE = "text; of the user also tool_result, of the assistant tool_use and thinking; no images, no files"


def messages_of_blocks(system: JsonValue, messages: Sequence[Message]) -> list[Message]:
    """Return the messages of chat that a conversation means.

    Blocks of one role that follow each other become one message, and results of tools one each.

    Args:
        system: The system's text, or its blocks; None for none.
        messages: The other messages.

    Raises:
        InvalidRequestError: A role or a block is none that can be rendered.
    """
    parts = _texts([] if system is None else system, "system")
    kept = [part for part in parts if not part["text"].startswith(_BILLING)]
    found: list[dict[str, Any]] = [{"role": "system", "content": kept}] if kept else []
    for number, message in enumerate(messages):
        name, role = f"messages[{number}]", message.get("role")
        if role not in _ROLES:
            raise _wrong(f"{name}.role", role, ", ".join(_ROLES))
        blocks = list(_blocks(message.get("content"), f"{name}.content"))
        for place, block in blocks:
            _add_block(found, role, block, place)
        if not blocks:
            _open_message(found, role)
    for each in found:
        if _THOUGHTS in each:  # joined at once: text by text takes seconds for thousands
            each[_THOUGHTS] = "".join(each[_THOUGHTS])
    return found


def left_out(tools: Sequence[Message]) -> tuple[str, ...]:
    """Return a warning for each tool that is no function of the client, but run or defined by Anthropic."""
    warning = "a tool of type {!s:.100} was left out: the model calls functions only".format
    return tuple(warning(tool.get("type")) for tool in tools if not _is_function(tool))


def chats_tools(tools: Sequence[Message]) -> tuple[Tool, ...]:
    """Return the tools as chat has them; those that are no functions are left out.

    Raises:
        InvalidRequestError: A function has no name or no schema, or a field of the wrong type.
    """
    named = ((tool, f"tools[{number}]") for number, tool in enumerate(tools) if _is_function(tool))
    return tuple(Tool(function=_function(tool, name)) for tool, name in named)


def chats_choice(choice: Mapping[str, JsonValue]) -> JsonValue:
    """Return ``tool_choice`` as chat has it.

    Raises:
        InvalidRequestError: It has another type than auto, any, tool and none.
    """
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "name": _field(choice, "name", str, "tool_choice")}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise _wrong("tool_choice.type", kind, "auto, any, tool or none")
    return _CHOICES[kind]


def _is_function(tool: Message) -> bool:
    return tool.get("type") in (None, "custom")


def _function(tool: Message, name: str) -> Function:
    return Function(
        name=_field(tool, "name", str, name),
        description=_field(tool, "description", str | None, name),
        parameters=_field(tool, "input_schema", dict, name),
        strict=_field(tool, "strict", bool | None, name),
    )


def _blocks(content: JsonValue, name: str) -> Iterator[tuple[str, Message]]:
    """Yield each block of a content with its name; a text is one."""
    blocks = [_part(content)] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise _wrong(name, content, "a text or a list of blocks")
    for number, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise _wrong(f"{name}[{number}]", block, "blocks, which are objects with a type")
        yield f"{name}[{number}]", block


def _add_block(messages: list[dict[str, Any]], role: str, block: Message, name: str) -> None:
    """Add a block to the messages of chat."""
    kind = block.get("type")
    if role == "user" and kind == "tool_result":
        of_call = _field(block, "tool_use_id", str, name)
        messages.append({"role": "tool", "content": _result(block, name), "tool_call_id": of_call})
        return
    message = _open_message(messages, role)
    if role == "assistant" and kind == "tool_use":
        function = {"name": _field(block, "name", str, name), "arguments": _field(block, "input", dict, name)}
        call = {"id": _field(block, "id", str, name), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif role == "assistant" and kind == "thinking":
        message.setdefault(_THOUGHTS, []).append(_field(block, "thinking", str, name))
    elif role != "assistant" or kind != "redacted_thinking":  # which only Anthropic can read
        message["content"].append(_text(block, name))


def _result(block: Message, name: str) -> list[Message]:
    """Return the content of a tool's message; a failure is said in its text, as chat has no field for it."""
    parts = _texts(block.get("content") or [], f"{name}.content")
    return [_part("Error:"), *parts] if block.get("is_error") else parts


def _open_message(messages: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """Return the last message if it is of a role, else a new one."""
    if not messages or messages[-1]["role"] != role:
        messages.append({"role": role, "content": []})
    return messages[-1]


def _texts(content: JsonValue, name: str) -> list[dict[str, Any]]:
    return [_text(block, place) for place, block in _blocks(content, name)]


def _text(block: Message, name: str) -> dict[str, Any]:
    if block.get("type") != "text":
        raise _wrong(f"{name}.type", block.get("type"), _READABLE)
    return _part(_field(block, "text", str, name))


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _field(block: Mapping[str, JsonValue], key: str, kind: Any, name: str) -> Any:
    value = block.get(key)
    if not isinstance(value, kind):
        raise _wrong(f"{name}.{key}", value, {str: "a text", dict: "an object"}.get(kind, str(kind)))
    return value


def _wrong(name: str, found: JsonValue, limit: str) -> InvalidRequestError:
    return InvalidRequestError(
        "a field of the conversation cannot be read",
        values=f"{name}={found!r:.200}",
        limit=limit,
        remedy="send it as Anthropic's API describes it, in text",
    )
