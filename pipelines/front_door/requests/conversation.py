"""Turns messages of chat, and items of responses, into what chat templates read, and renders them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.message import read_arguments
from pipelines.front_door.messages.style import HARMONY, MessageStyle, Thinking
from pipelines.front_door.messages.tools import Function, tools_for_template
from pipelines.front_door.requests.prompts import TokenIds, encode
from pipelines.front_door.served_model import ServedModel
from pipelines.text.chat_template import no_chat_template

Message = dict[str, JsonValue]

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_ITEMS = "message, function_call, custom_tool_call, the outputs of both, and reasoning"
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "name", "self"}
)


@dataclass(frozen=True)
class Conversation:
    """A conversation to render.

    Attributes:
        messages: The messages, as OpenAI's API has them.
        functions: Functions that the model is told of.
        variables: Further variables of the template, such as ``enable_thinking``.
        add_generation_prompt: End with the beginning of an answer.
        continue_final_message: End inside the last message.
    """

    messages: tuple[Message, ...]
    functions: tuple[Function, ...] = ()
    variables: Mapping[str, JsonValue] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        ids: Its tokens.
        thinking: Whether the answer begins with thoughts.
    """

    ids: TokenIds
    thinking: Thinking


async def chat_prompt(model: ServedModel, conversation: Conversation) -> ChatPrompt:
    """Render a conversation with the chat template of the model.

    Raises:
        ChatTemplateError: The model has no template, or it refuses the conversation.
        InvalidRequestError: A message is none that a template could render.
        PromptTooLongError: The conversation is longer than any prompt; see ``PromptLimits``.
    """
    if model.chat is None:
        raise no_chat_template(f"model={model.name!r}")
    style = model.style(with_tools=bool(conversation.functions))
    messages = _with_one_head(
        [_for_template(message, number, style) for number, message in enumerate(conversation.messages)]
    )
    # A conversation whose texts alone are too long is not rendered.
    texts = [str(message.get("content") or "") for message in messages]
    model.limits.check_bytes(sum(len(text.encode()) for text in texts), "messages")
    text = await model.chat.render(
        messages,
        tools=tools_for_template(conversation.functions) or None,
        # A conversation that is continued has no beginning of another answer.
        add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final_message,
        continue_final_message=conversation.continue_final_message,
        **_checked_variables(conversation.variables or {}),
    )
    ids = await encode(model, text, "messages", add_special_tokens=False, parse_special_tokens=True)
    last = messages[-1].get("content") if conversation.continue_final_message else None
    return ChatPrompt(ids, _thinking(style, text, last if isinstance(last, str) else ""))


def _thinking(style: MessageStyle, text: str, continued: str) -> Thinking:
    """Return where the answer stands to thoughts, by the end of the prompt or the message it continues."""
    if style.thoughts is None:
        return Thinking.NONE
    think_begin, think_end = style.thoughts
    if continued:
        is_open = continued.rfind(think_begin) > continued.rfind(think_end)
        return Thinking.BEGUN if is_open else Thinking.NONE
    end = text.rstrip()
    if end.endswith(think_begin):
        return Thinking.BEGUN
    return Thinking.NONE if end.endswith(think_end) else Thinking.POSSIBLE


def _for_template(message: Message, number: int, style: MessageStyle) -> Message:
    name = f"messages[{number}]"
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequestError(
            "a message has no role",
            values=f"{name}={message!r:.200}",
            limit="a role such as system, user, assistant or tool",
            remedy="add it",
        )
    found = {**message}
    if role == "developer" and not style.has_developer:
        found["role"] = "system"  # its older name
    if "content" in message:
        found["content"] = _text_of(message["content"], f"{name}.content")
    thoughts = message.get("reasoning")
    if thoughts is not None and "reasoning_content" not in message:  # vLLM's name, and that of templates
        found["reasoning_content"] = thoughts
    if found.pop("tool_calls", None):
        found["tool_calls"] = _calls(message["tool_calls"], f"{name}.tool_calls", style)
    elif role == "assistant":
        found["content"] = found.get("content") or ""  # templates write null as a text
    if style.calls is HARMONY and not found.get("content"):  # its template takes one of them
        found["thinking"] = found.get("reasoning_content")
    return {key: value for key, value in found.items() if value is not None or key == "content"}


def _with_one_head(messages: list[Message]) -> list[Message]:
    """Return messages with the system's at the beginning as one: many templates take no second one."""
    head = [*itertools.takewhile(lambda message: message["role"] == "system", messages)]
    if len(head) < 2:
        return messages
    texts = [str(message.get("content") or "") for message in head]
    return [{**head[0], "content": "\n\n".join(filter(None, texts))}, *messages[len(head) :]]


def _text_of(content: JsonValue, name: str) -> JsonValue:
    """Return a content as a text: parts are joined by line feeds, as vLLM does."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise InvalidRequestError(
                "the content of a message is not text",
                values=f"{name}={content!r:.200}",
                limit="a text, or parts with type text and a text",
                remedy="send text; this model takes no images, sounds or files",
            )
        texts.append(text)
    return "\n".join(texts)


def _calls(calls: JsonValue, name: str, style: MessageStyle) -> list[JsonValue]:
    """Return the tool calls of an assistant's message, with arguments as the template takes them."""
    if not isinstance(calls, list):
        raise _wrong_call(name, calls)
    return [_call(call, f"{name}[{number}]", style) for number, call in enumerate(calls)]


def _call(call: JsonValue, name: str, style: MessageStyle) -> JsonValue:
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(call, dict)
        or not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
    ):
        raise _wrong_call(name, call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = read_arguments(arguments)
    if not isinstance(arguments, dict):
        raise _wrong_call(f"{name}.function.arguments", arguments)
    given = arguments if style.takes_objects else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": given}}


def _wrong_call(name: str, found: JsonValue) -> InvalidRequestError:
    return InvalidRequestError(
        "a tool call of a message is not valid",
        values=f"{name}={found!r:.200}",
        limit='objects with "id", "type" and "function", which has a name, and arguments as an object or '
        "a text of JSON",
        remedy="send the tool calls as the server returned them",
    )


def _checked_variables(variables: Mapping[str, JsonValue]) -> Mapping[str, Any]:
    taken = sorted(_RESERVED & set(variables))
    if taken:
        raise InvalidRequestError(
            "a variable of the chat template has a reserved name",
            values=f"chat_template_kwargs.{taken[0]}",
            limit="variables such as enable_thinking",
            remedy="send it as a field of the request",
        )
    return variables


def messages_of(items: JsonValue) -> list[Message]:
    """Return the messages of chat that items of responses mean.

    Thoughts, text and calls of the assistant that follow each other become one message.

    Args:
        items: A text of the user, or a list of items.

    Raises:
        InvalidRequestError: An item has another type than those of ``_ITEMS``.
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
        elif kind == "function_call":
            function: JsonValue = {"name": item.get("name"), "arguments": item.get("arguments")}
            _add_call(messages, {"id": item.get("call_id"), "type": "function", "function": function})
        elif kind == "custom_tool_call":
            written: JsonValue = {"name": item.get("name"), "arguments": {"input": item.get("input")}}
            _add_call(messages, {"id": item.get("call_id"), "type": "function", "function": written})
        elif kind == "reasoning":
            messages.append({"role": "assistant", "content": "", "reasoning_content": _thoughts(item)})
        else:
            raise _wrong_item(f"{name}.type", kind)
    return messages or [said("user", "")]  # clients try a server with an empty list


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


def said(role: JsonValue, content: JsonValue) -> Message:
    """Return a message."""
    return {"role": role, "content": content}


def _wrong_item(name: str, found: JsonValue) -> InvalidRequestError:
    return InvalidRequestError(
        "the input of a response is not valid",
        values=f"{name}={found!r:.200}",
        limit=f"a text, or a list of items of type {_ITEMS}",
        remedy="send it as such items, not by their ids",
    )
