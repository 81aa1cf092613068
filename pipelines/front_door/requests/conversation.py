"""Asks for the next message of a conversation, which it renders with the model's chat template.

All APIs come here with messages as OpenAI's chat has them: ``message_blocks`` makes them of Anthropic's
blocks, ``endpoints.responses`` of the items of responses.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import JsonValue

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.answer_format import content_guide
from pipelines.front_door.messages.call_styles.harmony import HARMONY
from pipelines.front_door.messages.grammar import AnswerPlan
from pipelines.front_door.messages.message import Thinking, read_arguments
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Function, calling_of, schema_of, tools_for_template
from pipelines.front_door.requests.sampling import SamplingFields, sampling_request
from pipelines.front_door.served_model import ServedModel, TokenIds
from pipelines.text.chat_template import no_chat_template
from pipelines.wire.request import CompletionRequest

Message = dict[str, JsonValue]

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "name", "self"}
)


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class MessageFields(SamplingFields):
    """The fields that chat and responses share, and what both say in fields of their own.

    Attributes:
        tool_choice: Whether the model may, must or must not call a function, or which.
        parallel_tool_calls: Whether it may call several; None for true.
        chat_template_kwargs: Further variables of the template, such as ``enable_thinking``.
        reasoning: ``{"effort": "none"}`` turns thoughts off, as does OpenRouter's ``{"enabled": false}``;
            other efforts mean nothing here.
    """

    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    reasoning: dict[str, JsonValue] | None = None

    @property
    def schemas(self) -> Iterator[tuple[str, str]]:
        """The places and texts of the schemas that the answer, and its calls, follow."""
        yield from super().schemas
        yield from ((f"the function {each.name[:64]}", schema_of(each)) for each in self.functions)

    @abstractmethod
    async def rendered(self, model: ServedModel) -> tuple[TokenIds, Thinking]:
        """Return the tokens of the conversation, and how its answer begins; see ``chat_prompt``."""

    def variables(self, effort: str | None = None) -> dict[str, JsonValue]:
        """Return the template's variables; OpenAI's effort of reasoning "none" turns thoughts off.

        Raises:
            InvalidRequestError: Thoughts should be limited or left out.
        """
        asked = self.reasoning or {}
        if wrong := [name for name in ("max_tokens", "exclude") if asked.get(name)]:
            raise InvalidRequestError(
                f"reasoning.{wrong[0]}={asked[wrong[0]]!r:.200} is not supported: thoughts have no limit, "
                "and are returned apart from the text",
                "leave it out",
            )
        is_off = "none" in (effort, asked.get("effort")) or asked.get("enabled") is False
        return {**({"enable_thinking": False} if is_off else {}), **(self.chat_template_kwargs or {})}


async def message_request(
    body: MessageFields,
    model: ServedModel,
    field: str,
    max_tokens: int | None,
    num_log_probs: int | None = None,
) -> tuple[CompletionRequest, Callable[[], MessageReader]]:
    """Return the request for one answer, and a function that makes a reader of an answer.

    Args:
        body: The client's request.
        model: The model.
        field: The field with the conversation.
        max_tokens: Most output tokens; None for all that fit.
        num_log_probs: As in ``CompletionRequest``.

    Raises:
        ChatTemplateError: The conversation cannot be rendered, or how the model calls tools is unknown.
        InvalidRequestError: A field is wrong, or the conversation leaves no room for an answer.
    """
    plan = AnswerPlan(
        model.style(with_tools=bool(body.functions)),
        calling_of(body.functions, body.tool_choice, body.parallel_tool_calls),
        content_guide(body.form, body.structured_outputs),
    )
    ids, thinking = await body.rendered(model)
    model.limits.check_length(len(ids), field)
    asked = replace(
        sampling_request(
            body, model.defaults, model.max_seq_len - len(ids) if max_tokens is None else max_tokens
        ),
        prompt_ids=ids,
        guide=await asyncio.to_thread(plan.guide, thinking),  # schemas may be large
        num_log_probs=num_log_probs,
        skip_special_tokens=body.skip_special_tokens is not False and not plan.has_special_marks,
    )
    return asked, partial(plan.new_reader, thinking)


async def chat_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    functions: Sequence[Function] = (),
    variables: Mapping[str, JsonValue] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> tuple[TokenIds, Thinking]:
    """Return the tokens of a conversation in the model's chat template, and how its answer begins.

    Args:
        model: The model.
        messages: The messages, as OpenAI's API has them.
        functions: Functions that the model is told of.
        variables: Further variables of the template, such as ``enable_thinking``.
        add_generation_prompt: End with the beginning of an answer.
        continue_final_message: End inside the last message.

    Raises:
        ChatTemplateError: The model has no template, or it refuses the conversation.
        InvalidRequestError: A message is none that a template could render.
        PromptTooLongError: The conversation is longer than any prompt; see ``PromptLimits``.
    """
    if model.chat is None:
        raise no_chat_template(f"model={model.name!r}")
    style = model.style(with_tools=bool(functions))
    found = _with_one_head([_for_template(each, number, style) for number, each in enumerate(messages)])
    # A conversation whose texts alone are too long is not rendered.
    texts = [str(message.get("content") or "") for message in found]
    model.limits.check_bytes(sum(len(text.encode()) for text in texts), "messages")
    text = await model.chat.render(
        found,
        tools=tools_for_template(functions) or None,
        # A conversation that is continued has no beginning of another answer.
        add_generation_prompt=add_generation_prompt and not continue_final_message,
        continue_final_message=continue_final_message,
        **_checked_variables(variables or {}),
    )
    ids = await model.encode(text, "messages", add_special_tokens=False, parse_special_tokens=True)
    last = found[-1].get("content") if continue_final_message else None
    return ids, _thinking(style, text, last if isinstance(last, str) else "")


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
            f"a message has no role: {name}={message!r:.200}",
            "add one, such as system, user, assistant or tool",
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
                f"the content of a message is not text: {name}={content!r:.200}",
                "send a text, or parts of type text; this model takes no images, sounds or files",
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
        f"a tool call is not an id, a type and a function with a name and arguments: {name}={found!r:.200}",
        "send the tool calls as the server returned them",
    )


def _checked_variables(variables: Mapping[str, JsonValue]) -> Mapping[str, Any]:
    if taken := sorted(_RESERVED & set(variables)):
        raise InvalidRequestError(
            f"chat_template_kwargs.{taken[0]} is no variable of the template, such as enable_thinking",
            "send it as a field of the request",
        )
    return variables
