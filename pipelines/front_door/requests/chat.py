"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from pipelines import configuration
from pipelines.front_door.messages.answer_format import content_guide
from pipelines.front_door.messages.plan import AnswerPlan
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Tool, calling_of
from pipelines.front_door.requests.conversation import Conversation, Message, variables_of_effort
from pipelines.front_door.requests.sampling import SamplingFields


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class ChatBody(SamplingFields):
    """The fields of a request.

    Attributes:
        messages: The conversation.
        max_completion_tokens: Most output tokens; None for all that fit.
        max_tokens: Older name of ``max_completion_tokens``.
        logprobs: Return the log probabilities of output tokens.
        top_logprobs: Return those of this many likeliest tokens too.
        tools: Functions that the model may call.
        tool_choice: Whether it may, must or must not call one, or which.
        parallel_tool_calls: Whether it may call several; None for true.
        reasoning_effort: "none" turns thoughts off; other values mean nothing here.
        chat_template_kwargs: Further variables of the template, such as ``enable_thinking``.
        add_generation_prompt: End the prompt with the beginning of an answer.
        continue_final_message: Continue the last message instead of answering it.
        verbosity: Means nothing here.
    """

    messages: tuple[Message, ...]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    verbosity: Any = None

    def conversation(self) -> Conversation:
        """Return the conversation to render."""
        return Conversation(
            messages=self.messages,
            functions=tuple(tool.function for tool in self.tools),
            variables={**variables_of_effort(self.reasoning_effort), **(self.chat_template_kwargs or {})},
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )

    @property
    def guide_field(self) -> str:
        """Return the name of the field that decides the answer's guide."""
        return super().guide_field or "tools"

    def plan(self, style: MessageStyle) -> AnswerPlan:
        """Return what the answer may have.

        Raises:
            ChatTemplateError: The request has tools, and how the model calls them is unknown.
            InvalidRequestError: Tools, their choice or the form of the answer is wrong.
        """
        functions = [tool.function for tool in self.tools]
        calling = calling_of(functions, self.tool_choice, self.parallel_tool_calls)
        return AnswerPlan.of(style, calling, content_guide(self.response_format, self.structured_outputs))
