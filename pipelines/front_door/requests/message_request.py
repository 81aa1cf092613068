"""Asks for the next message of a conversation, as chat and responses do."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from pydantic import JsonValue

from pipelines import configuration
from pipelines.front_door.messages.answer_format import content_guide
from pipelines.front_door.messages.grammar import AnswerPlan
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.tools import calling_of, schema_of
from pipelines.front_door.requests.conversation import Conversation, chat_prompt
from pipelines.front_door.requests.fields import IdleField
from pipelines.front_door.requests.sampling import SamplingFields, sampling_request
from pipelines.front_door.served_model import ServedModel
from pipelines.wire.request import CompletionRequest

_THOUGHTS = IdleField((), "thoughts have no limit, and are returned apart from the text", ())


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class MessageFields(SamplingFields):
    """The fields that chat and responses share, and what both say in fields of their own.

    Attributes:
        tool_choice: Whether the model may, must or must not call a function, or which.
        parallel_tool_calls: Whether it may call several; None for true.
        chat_template_kwargs: Further variables of the template, such as ``enable_thinking``.
        top_logprobs: Return the log probabilities of this many likeliest tokens too.
        reasoning: ``{"effort": "none"}`` turns thoughts off, as does OpenRouter's ``{"enabled": false}``;
            other efforts mean nothing here.
    """

    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    top_logprobs: int | None = None
    reasoning: dict[str, JsonValue] | None = None

    @property
    def schemas(self) -> Iterator[tuple[str, str]]:
        """The places and texts of the schemas that the answer, and its calls, follow."""
        yield from super().schemas
        yield from ((f"the function {each.name[:64]}", schema_of(each)) for each in self.functions)

    @property
    @abstractmethod
    def max_output(self) -> int | None:
        """Most output tokens; None for all that fit."""

    @property
    @abstractmethod
    def num_log_probs(self) -> int | None:
        """See ``sampling.num_log_probs``."""

    @abstractmethod
    def to_conversation(self) -> Conversation:
        """Return the conversation to render.

        Raises:
            InvalidRequestError: A part of it cannot be rendered.
        """

    def variables(self, effort: str | None = None) -> dict[str, JsonValue]:
        """Return the template's variables; OpenAI's effort of reasoning "none" turns thoughts off.

        Raises:
            InvalidRequestError: Thoughts should be limited or left out.
        """
        asked = self.reasoning or {}
        if wrong := [name for name in ("max_tokens", "exclude") if asked.get(name)]:
            _THOUGHTS.check(f"reasoning.{wrong[0]}", asked[wrong[0]])
        is_off = "none" in (effort, asked.get("effort")) or asked.get("enabled") is False
        return {**({"enable_thinking": False} if is_off else {}), **(self.chat_template_kwargs or {})}


async def message_request(
    body: MessageFields, model: ServedModel, field: str
) -> tuple[CompletionRequest, Callable[[], MessageReader]]:
    """Return the request for one answer, and a function that makes a reader of an answer.

    Args:
        body: The client's request.
        model: The model.
        field: The field with the conversation.

    Raises:
        ChatTemplateError: The conversation cannot be rendered, or how the model calls tools is unknown.
        InvalidRequestError: A field is wrong, or the conversation leaves no room for an answer.
    """
    log_probs = body.num_log_probs
    plan = AnswerPlan(
        model.style(with_tools=bool(body.functions)),
        calling_of(body.functions, body.tool_choice, body.parallel_tool_calls),
        content_guide(body.form, body.structured_outputs),
    )
    prompt = await chat_prompt(model, body.to_conversation())
    model.limits.check_length(len(prompt.ids), field)
    room = model.max_seq_len - len(prompt.ids)
    asked = replace(
        sampling_request(body, model.defaults, room if body.max_output is None else body.max_output),
        prompt_ids=prompt.ids,
        guide=await asyncio.to_thread(plan.guide, prompt.thinking),  # schemas may be large
        num_log_probs=log_probs,
        skip_special_tokens=body.skip_special_tokens is not False and not plan.has_special_marks,
    )
    return asked, partial(plan.new_reader, prompt.thinking)
