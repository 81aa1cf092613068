"""The body of ``POST /v1/responses``: its items become messages, and its functions tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.answer_format import content_guide, guide_of_format
from pipelines.front_door.messages.plan import AnswerPlan
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Function, calling_of
from pipelines.front_door.requests.conversation import Conversation, Message, variables_of_effort
from pipelines.front_door.requests.sampling import SamplingFields, num_log_probs

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
class ResponsesBody(SamplingFields):
    """The fields of a request.

    Nothing is stored, so a conversation is sent whole. The fields at the end mean nothing here.

    Attributes:
        input: The user's text, or the items of the conversation.
        instructions: The system's message.
        max_output_tokens: Most output tokens; None for all that fit.
        tools: Functions that the model may call.
        tool_choice: Whether it may, must or must not call one, or which.
        parallel_tool_calls: Whether it may call several; None for true.
        text: Form of the answer's text.
        reasoning: ``{"effort": "none"}`` turns thoughts off; other values mean nothing here.
        chat_template_kwargs: Further variables of the template, such as ``enable_thinking``.
        include: With "message.output_text.logprobs", return the log probabilities of the text's tokens;
            other entries mean nothing here.
        top_logprobs: Return those of this many likeliest tokens too.
        store: Only false.
        previous_response_id: Refused, as are ``conversation``, ``prompt`` and ``background``.
    """

    input: JsonValue
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: tuple[ResponseFunction, ...] = ()
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Message | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    store: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: bool = False
    truncation: Literal["disabled"] = "disabled"
    include: tuple[str, ...] | None = None
    top_logprobs: int | None = None

    stream_options: Any = None
    max_tool_calls: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None

    @property
    def num_log_probs(self) -> int | None:
        """Return of how many likeliest tokens log probabilities are returned too; None for none at all.

        Raises:
            InvalidRequestError: The request has ``top_logprobs`` and does not include log probabilities.
        """
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
        effort = variables_of_effort((self.reasoning or {}).get("effort"))
        return Conversation(
            messages=(*first, *messages_of(self.input)),
            functions=self.tools,
            variables={**effort, **(self.chat_template_kwargs or {})},
        )

    @property
    def guide_field(self) -> str:
        """Return the name of the field that decides the answer's guide."""
        form = self.text.format if self.text is not None else None
        return super().guide_field or (
            "text.format" if guide_of_format(_nested(form)) is not None else "tools"
        )

    def plan(self, style: MessageStyle) -> AnswerPlan:
        """Return what the answer may have.

        Raises:
            ChatTemplateError: The request has tools, and how the model calls them is unknown.
            InvalidRequestError: Tools, their choice or the form of the answer is wrong.
        """
        calling = calling_of(self.tools, self.tool_choice, self.parallel_tool_calls)
        form = self.text.format if self.text is not None else None
        return AnswerPlan.of(style, calling, content_guide(_nested(form), self.structured_outputs))


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


def _nested(form: Message | None) -> Message | None:
    """Return ``text.format`` as ``response_format``, whose schema is nested."""
    if form is None or form.get("type") != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}


def _wrong_item(name: str, found: JsonValue) -> InvalidRequestError:
    return InvalidRequestError(
        "the input of a response is not valid",
        values=f"{name}={found!r:.200}",
        limit="a text, or a list of items of type message, function_call, function_call_output and reasoning",
        remedy="send the whole conversation as such items",
    )
