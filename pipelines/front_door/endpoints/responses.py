"""Answers ``POST /v1/responses``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from aiohttp import web
from pydantic import JsonValue
from pydantic_core import to_json

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.access.clients import CLIENT
from pipelines.front_door.answering import RouterCalls, answer
from pipelines.front_door.endpoints.kept_responses import KEPT, KEPT_S
from pipelines.front_door.endpoints.response_format import ResponseFormat
from pipelines.front_door.messages.message import Thinking
from pipelines.front_door.messages.tools import Function
from pipelines.front_door.requests.conversation import Message, MessageFields, chat_prompt, message_request
from pipelines.front_door.served_model import ServedModel, TokenIds

_LOG_PROBS = "message.output_text.logprobs"
_REPEATED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "user", "safety_identifier"),
    *("prompt_cache_key", "previous_response_id", "store", "truncation"),
)


@dataclass(frozen=True, kw_only=True)
class ResponseFunction(Function):
    """An entry of ``tools``; the function's fields are not nested as those of chat are."""

    type: Literal["function"]


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """The form of the answer's text; ``verbosity`` means nothing here."""

    format: Message | None = None
    verbosity: Any = None


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class ResponsesBody(MessageFields):
    """The fields of a request.

    Attributes:
        input: The user's text, or the items of the conversation.
        instructions: The system's message.
        max_output_tokens: Most output tokens; None for all that fit.
        tools: Functions that the model may call.
        text: Form of the answer's text.
        include: Means nothing here, but for log probabilities, which are refused.
        truncation: With either, a conversation that does not fit is refused.
        previous_response_id: A kept response, whose conversation this one continues, without its
            instructions.
        store: Keep the response.
        conversation: Refused, as are ``prompt`` and ``background``.
        max_tool_calls: Returned, as are the four that follow; they mean nothing here.
    """

    input: JsonValue
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[ResponseFunction, ...] = ()
    text: TextConfig | None = None
    previous_response_id: str | None = None
    store: bool = True
    conversation: Any = None
    prompt: Any = None
    background: bool = False
    truncation: Literal["auto", "disabled"] = "disabled"
    include: tuple[str, ...] | None = None
    max_tool_calls: int | None = None
    metadata: Message | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    form_field: ClassVar[str] = "text.format"

    @property
    def form(self) -> Message | None:
        """``text.format`` as ``response_format``, whose schema is nested."""
        form = self.text.format if self.text is not None else None
        if form is None or form.get("type") != "json_schema":
            return form
        return {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions of ``tools``."""
        return self.tools

    @property
    def repeated(self) -> dict[str, Any]:
        """The fields that a response repeats."""
        return {
            **{name: getattr(self, name) for name in _REPEATED},
            "tools": [asdict(function) for function in self.tools],
            "tool_choice": "auto" if self.tool_choice is None else self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": None, "summary": None, **(self.reasoning or {})},
            "text": {"format": (self.text.format if self.text else None) or {"type": "text"}},
            "metadata": self.metadata or {},
            **self.warning_fields,
        }

    def check(self) -> None:
        """Refuse what needs a database or several answers.

        Raises:
            InvalidRequestError: The request asks for one of these.
        """
        for name in ("conversation", "prompt", "background"):
            if getattr(self, name):
                raise InvalidRequestError(
                    f"{name}={getattr(self, name)!r:.200} is not supported: no {name} is kept",
                    "send previous_response_id, or the whole conversation in input",
                )
        of_chat = {
            "n": self.n != 1,
            "response_format": self.response_format is not None,
            "include": _LOG_PROBS in (self.include or ()),
        }
        if asked := [name for name, is_asked in of_chat.items() if is_asked]:
            raise InvalidRequestError(
                f"{asked[0]}={getattr(self, asked[0])!r:.200} belongs to /v1/chat/completions",
                "ask that path, or send one request for each answer, with its form in text.format",
            )

    async def rendered(self, model: ServedModel) -> tuple[TokenIds, Thinking]:
        """Return the tokens of the conversation, and how its answer begins.

        Raises:
            InvalidRequestError: An item is none that can be rendered. For others see ``chat_prompt``.
        """
        first: list[Message] = [] if self.instructions is None else [_said("system", self.instructions)]
        return await chat_prompt(model, [*first, *messages_of(self.input)], self.tools, self.variables())


async def answer_response(
    request: web.Request, body: ResponsesBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    body.check()
    kept, owner = request.app[KEPT], request[CLIENT].key.sha256
    body = replace(body, store=body.store and kept.max_bytes > 0)

    def conversation() -> JsonValue:
        given = body.input
        items: JsonValue = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if body.previous_response_id is None or not isinstance(items, list):
            return items
        return [*kept.conversation(owner, body.previous_response_id), *items]

    items = await asyncio.to_thread(conversation)  # there may be very many
    whole = replace(body, input=items)
    asked, new_reader = await message_request(whole, model, "input", body.max_output_tokens)

    def keep(response: dict[str, Any]) -> None:
        if body.store:
            kept.keep(owner, response, before)

    before = await asyncio.to_thread(to_json, items) if body.store else b""
    form = ResponseFormat(body.repeated, model, asked, new_reader(), keep)
    try:
        return await answer(request, router, [asked], form, body)
    finally:
        asyncio.get_running_loop().call_later(KEPT_S, kept.drop_old)


def messages_of(items: JsonValue) -> list[Message]:
    """Return the messages of chat that items mean.

    Thoughts, text and calls of the assistant that follow each other become one message.

    Args:
        items: A text of the user, or a list of items.

    Raises:
        InvalidRequestError: An item has another type than those that are read.
    """
    if isinstance(items, str):
        return [_said("user", items)]
    if not isinstance(items, list):
        raise _wrong_item("input", items)
    messages: list[Message] = []
    for number, item in enumerate(items):
        name = f"input[{number}]"
        if not isinstance(item, dict):
            raise _wrong_item(name, item)
        kind = item.get("type", "message")
        if kind == "message":
            message = _said(item.get("role"), item.get("content"))
            if item.get("role") == "assistant" and _is_open(messages):
                messages[-1] |= message
            else:
                messages.append(message)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            messages.append({**_said("tool", item.get("output")), "tool_call_id": item.get("call_id")})
        elif kind in ("function_call", "custom_tool_call"):
            arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
            function: JsonValue = {"name": item.get("name"), "arguments": arguments}
            _add_call(messages, {"id": item.get("call_id"), "type": "function", "function": function})
        elif kind == "reasoning":
            messages.append({"role": "assistant", "content": "", "reasoning_content": _thoughts(item)})
        else:
            raise _wrong_item(f"{name}.type", kind)
    return messages or [_said("user", "")]  # clients try a server with an empty list


def _said(role: JsonValue, content: JsonValue) -> Message:
    """Return a message."""
    return {"role": role, "content": content}


def _is_open(messages: list[Message]) -> bool:
    """Return whether the last message has only thoughts."""
    return bool(messages) and "reasoning_content" in messages[-1] and not messages[-1]["content"]


def _add_call(messages: list[Message], call: JsonValue) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append(_said("assistant", ""))
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
