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
_SEARCH = "tool_search_tool_"
"""Begins the types of Anthropic's own searches for tools."""

_CHANGES = ("tool_addition", "tool_removal")
_READABLE = "text, tool_result of the user, or tool_use or thinking of the assistant"


def messages_of_blocks(system: JsonValue, messages: Sequence[Message]) -> list[Message]:
    """Return the messages of chat that a conversation means.

    Blocks of one role that follow each other become one message, and results of tools one each.

    Args:
        system: The system's text, or its blocks; None for none.
        messages: The other messages.

    Raises:
        InvalidRequestError: A role or a block is none that can be rendered.
    """
    parts = [_text(*block) for block in _blocks([] if system is None else system, "system")]
    kept = [part for part in parts if not part["text"].startswith(_BILLING)]
    found: list[dict[str, Any]] = [{"role": "system", "content": kept}] if kept else []
    for number, message in enumerate(messages):
        name, role = f"messages[{number}]", message.get("role")
        if role not in _ROLES:
            raise _wrong(f"{name}.role", role, " or ".join(_ROLES))
        blocks = list(_blocks(message.get("content"), f"{name}.content"))
        for place, block in blocks:
            _add_block(found, role, block, place)
        if not blocks:
            _open_message(found, role)
    for each in found:
        if _THOUGHTS in each:  # joined at once: text by text takes seconds for thousands
            each[_THOUGHTS] = "".join(each[_THOUGHTS])
    return found


def left_out(tools: Sequence[Message], messages: Sequence[Message]) -> tuple[str, ...]:
    """Return a warning for each tool and each type of block that only Anthropic's server runs or reads.

    The outcome of its searches for tools is kept: ``chats_tools`` reads it.
    """
    warning = "a tool of type {!s:.100} was left out: the model calls functions only".format
    found = [warning(tool.get("type")) for tool in tools if not _is_function(tool)]
    if _has_search(tools) and any(map(_is_deferred, tools)):
        found.append("no search for tools is run here: the model is told of all tools from the beginning")
    others = {
        str(kind)[:100]
        for kind, name, _ in _told(messages)
        if _is_done_elsewhere(kind) and kind != "tool_search_tool_result" and not name.startswith(_SEARCH)
    }
    found += [f"blocks of type {kind} were left out: the model cannot read them" for kind in sorted(others)]
    return tuple(found)


def chats_tools(tools: Sequence[Message], messages: Sequence[Message], chosen: JsonValue) -> tuple[Tool, ...]:
    """Return the tools that the model is told of, as chat has them.

    Tools that are no functions are left out. So are those with ``defer_loading`` until the conversation
    refers to them, as it does when the client's own search has found them: Claude Code's is a function.
    Nothing is deferred if Anthropic's server should search, or if all tools are.

    Args:
        tools: The tools of the request.
        messages: The conversation.
        chosen: A tool that ``tool_choice`` names.

    Raises:
        InvalidRequestError: A function has no name or no schema, or a field of the wrong type.
    """
    deferred = [tool for tool in tools if _is_deferred(tool)]
    is_searched = not _has_search(tools) and len(deferred) < sum(map(_is_function, tools))
    hidden = {str(tool.get("name")) for tool in deferred} if is_searched else set()
    added: list[Message] = []
    for kind, name, block in _told(messages):
        if kind == "tool_removal":
            hidden.add(name)
        elif kind in ("tool_addition", "tool_reference", "tool_use"):
            hidden.discard(name)
            if kind == "tool_addition" and isinstance(definition := block.get("definition"), dict):
                added.append(definition)
    hidden.discard(str(chosen))
    numbered = [(f"tools[{number}]", tool) for number, tool in enumerate((*tools, *added))]
    functions = [(place, tool) for place, tool in numbered if _is_function(tool)]
    return tuple(
        Tool(function=_function(tool, place))
        for place, tool in functions
        if str(tool.get("name")) not in hidden
    )


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


def _is_deferred(tool: Message) -> bool:
    return tool.get("defer_loading") is True and _is_function(tool)


def _has_search(tools: Sequence[Message]) -> bool:
    return any(str(tool.get("type")).startswith(_SEARCH) for tool in tools)


def _told(messages: Sequence[Message]) -> Iterator[tuple[JsonValue, str, Message]]:
    """Yield the type of each block, the tool that it names, and the block or what it says of the tool."""
    for message in messages:
        for block in _objects(message.get("content")):
            tool = block.get("tool")
            if block.get("type") in _CHANGES and isinstance(tool, dict):
                definition = tool.get("definition")
                named = definition if isinstance(definition, dict) else tool
                yield block["type"], str(named.get("name")), tool
            else:
                yield block.get("type"), str(block.get("name")), block
            inner = block.get("content")
            found = inner.get("tool_references") if isinstance(inner, dict) else inner
            for each in _objects(found):
                yield each.get("type"), str(each.get("tool_name")), each


def _objects(content: JsonValue) -> list[Message]:
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []


def _is_done_elsewhere(kind: JsonValue) -> bool:
    """Whether a block says what Anthropic's server did."""
    return isinstance(kind, str) and (kind == "server_tool_use" or kind.endswith("_tool_result"))


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
            raise _wrong(f"{name}[{number}]", block, "a block, which is an object with a type")
        yield f"{name}[{number}]", block


def _add_block(messages: list[dict[str, Any]], role: str, block: Message, name: str) -> None:
    """Add a block to the messages of chat."""
    kind = block.get("type")
    if role == "user" and kind == "tool_result":
        of_call = _field(block, "tool_use_id", str, name)
        messages.append({"role": "tool", "content": _result(block, name), "tool_call_id": of_call})
        return
    if kind in _CHANGES or (role == "assistant" and _is_done_elsewhere(kind)):
        return  # said by the tools that the model is told of, or done by a server that the model is not
    message = _open_message(messages, role)
    if role == "assistant" and kind == "tool_use":
        function = {"name": _field(block, "name", str, name), "arguments": _field(block, "input", dict, name)}
        call = {"id": _field(block, "id", str, name), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif role == "assistant" and kind == "thinking":
        message.setdefault(_THOUGHTS, []).append(_field(block, "thinking", str, name))
    elif role != "assistant" or kind != "redacted_thinking":  # which only Anthropic can read
        message["content"].append(_text(name, block))


def _result(block: Message, name: str) -> list[Message]:
    """Return the content of a tool's message; a failure is said in its text, as chat has no field for it."""
    blocks = _blocks(block.get("content") or [], f"{name}.content")
    parts = [
        _part(f"The tool {part.get('tool_name')} can be called now.")
        if part.get("type") == "tool_reference"  # that a search found
        else _text(place, part)
        for place, part in blocks
    ]
    return [_part("Error:"), *parts] if block.get("is_error") else parts


def _open_message(messages: list[dict[str, Any]], role: str) -> dict[str, Any]:
    """Return the last message if it is of a role, else a new one."""
    if not messages or messages[-1]["role"] != role:
        messages.append({"role": role, "content": []})
    return messages[-1]


def _text(name: str, block: Message) -> dict[str, Any]:
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
        f"{name}={found!r:.200} is not {limit}", "send it as Anthropic's API describes it, in text"
    )
