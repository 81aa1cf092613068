"""The body of ``POST /v1/responses``: its items become messages, and its functions tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import JsonValue

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.tools import Function
from pipelines.front_door.requests.conversation import Conversation, Message
from pipelines.front_door.requests.message_request import MessageFields
from pipelines.front_door.requests.sampling import num_log_probs

LOG_PROBS = "message.output_text.logprobs"


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

    Nothing is stored, so a conversation is sent whole. The fields at the end mean nothing here.

    Attributes:
        input: The user's text, or the items of the conversation.
        instructions: The system's message.
        max_output_tokens: Most output tokens; None for all that fit.
        tools: Functions that the model may call.
        text: Form of the answer's text.
        reasoning: ``{"effort": "none"}`` turns thoughts off; other values mean nothing here.
        include: With "message.output_text.logprobs", return the log probabilities of the text's tokens;
            other entries mean nothing here.
        store: Only false.
        previous_response_id: Refused, as are ``conversation``, ``prompt`` and ``background``.
    """

    input: JsonValue
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[ResponseFunction, ...] = ()
    text: TextConfig | None = None
    reasoning: Message | None = None
    store: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: bool = False
    truncation: Literal["disabled"] = "disabled"
    include: tuple[str, ...] | None = None

    stream_options: Any = None
    max_tool_calls: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None

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
    def max_output(self) -> int | None:
        """Most output tokens."""
        return self.max_output_tokens

    @property
    def num_log_probs(self) -> int | None:
        """See ``sampling.num_log_probs``."""
        return num_log_probs(LOG_PROBS in (self.include or ()), self.top_logprobs, f'include=["{LOG_PROBS}"]')

    def check(self) -> None:
        """Refuse what needs stored responses or several answers.

        Raises:
            InvalidRequestError: The request asks for one of these.
        """
        stored = ("store", "previous_response_id", "conversation", "prompt", "background")
        for name in stored:
            if getattr(self, name):
                raise InvalidRequestError(
                    "responses are not stored",
                    values=f"{name}={getattr(self, name)!r:.200}",
                    limit="every request has its whole conversation in input",
                    remedy=f"send store=false, no {name}, and the items of earlier responses in input",
                )
        if self.n != 1 or self.response_format is not None:
            name = "n" if self.n != 1 else "response_format"
            raise InvalidRequestError(
                f"{name} belongs to /v1/chat/completions",
                values=f"{name}={getattr(self, name)!r:.200}",
                limit="one answer, whose form is in text.format",
                remedy="send text.format, or use /v1/chat/completions",
            )

    def to_conversation(self) -> Conversation:
        """Return the conversation to render.

        Raises:
            InvalidRequestError: An item is none that can be rendered.
        """
        first: list[Message] = [] if self.instructions is None else [_said("system", self.instructions)]
        return Conversation(
            messages=(*first, *messages_of(self.input)),
            functions=self.tools,
            variables=self.variables((self.reasoning or {}).get("effort")),
        )


def messages_of(items: JsonValue) -> list[Message]:
    """Return the messages of chat that items of responses mean.

    Thoughts, text and calls of the assistant that follow each other become one message.

    Args:
        items: A text of the user, or a list of items.

    Raises:
        InvalidRequestError: An item has another type than message, function_call, function_call_output and
            reasoning.
    """
    if isinstance(items, str):
        return [_said("user", items)]
    if not isinstance(items, list) or not items:
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
        elif kind == "function_call_output":
            messages.append({**_said("tool", item.get("output")), "tool_call_id": item.get("call_id")})
        elif kind == "function_call":
            function: JsonValue = {"name": item.get("name"), "arguments": item.get("arguments")}
            _add_call(messages, {"id": item.get("call_id"), "type": "function", "function": function})
        elif kind == "reasoning":
            messages.append({"role": "assistant", "content": "", "reasoning_content": _thoughts(item)})
        else:
            raise _wrong_item(f"{name}.type", kind)
    return messages


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


def _said(role: JsonValue, content: JsonValue) -> Message:
    return {"role": role, "content": content}


def _wrong_item(name: str, found: JsonValue) -> InvalidRequestError:
    return InvalidRequestError(
        "the input of a response is not valid",
        values=f"{name}={found!r:.200}",
        limit="a text, or a list of items of type message, function_call, function_call_output and reasoning",
        remedy="send the whole conversation as such items",
    )
