"""Answers ``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from pydantic import JsonValue

from pipelines import configuration
from pipelines.client.generation import Chunk
from pipelines.front_door.answering import answer
from pipelines.front_door.messages.answer_format import content_guide
from pipelines.front_door.messages.message import MessageDocument, Part
from pipelines.front_door.messages.plan import AnswerPlan
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Tool, calling_of
from pipelines.front_door.requests.body import read_body
from pipelines.front_door.requests.conversation import Conversation, Message, chat_prompt, variables_of_effort
from pipelines.front_door.requests.sampling import (
    SamplingFields,
    StreamOptions,
    check_choices,
    check_model,
    num_log_probs,
    sampling_request,
    seed_of_choice,
)
from pipelines.front_door.router_calls import RouterCalls
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import Totals, chat_log_probs, runs_by_source
from pipelines.wire.request import CompletionRequest


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


async def answer_chat(request: web.Request, model: ServedModel, router: RouterCalls) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    body = await read_body(ChatBody, request)
    check_model(body.model, model)
    check_choices(1, body.n)
    log_probs = num_log_probs(body.logprobs, body.top_logprobs, "logprobs=true")
    plan = body.plan(model.style(with_tools=bool(body.tools)))
    prompt = await chat_prompt(model, body.conversation())
    model.check_length(len(prompt.ids), "messages")
    common = replace(
        sampling_request(body, model.defaults, _max_tokens(body, model.max_seq_len - len(prompt.ids))),
        prompt_ids=prompt.ids,
        guide=plan.guide(prompt.thinking),
        num_log_probs=log_probs,
        skip_special_tokens=body.skip_special_tokens and not plan.has_special_marks,
    )
    assert common.seed is not None
    asked = [replace(common, seed=seed_of_choice(common.seed, number)) for number in range(body.n)]
    readers = [plan.new_reader(prompt.thinking) for _ in asked]
    form = _ChatFormat(body, model, asked, readers)
    return await answer(request, router, asked, form, body)


class _ChatFormat:
    """Writes the answers to one request.

    Args:
        body: The request.
        model: The model.
        asked: A request for each answer.
        readers: A reader for each answer.
    """

    def __init__(
        self,
        body: ChatBody,
        model: ServedModel,
        asked: Sequence[CompletionRequest],
        readers: Sequence[MessageReader],
    ) -> None:
        self._body = body
        self._model = model
        self._options = body.stream_options or StreamOptions()
        self._asked = asked
        self._readers = readers
        self._messages = [MessageDocument() for _ in asked]
        self._begun: set[int] = set()
        self._totals = Totals(len(asked[0].prompt_ids), len(asked))
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        choices = []
        for number, chunk in enumerate(answers):
            self._totals.add(chunk)
            message = self._messages[number]
            for part in self._parts(number, chunk):
                message.add(part)
            choices.append(
                {"index": number, "message": message.document, **self._details(chunk, number)}
                | self._last(number, chunk)
            )
        totals = self._totals
        head = self._head | self._prompt_ids
        return {**head, "choices": choices, "usage": totals.usage, "metrics": totals.metrics}

    def events(self, number: int, chunk: Chunk) -> Iterable[dict[str, Any]]:
        """Return the events for a chunk of an answer; the first one of an answer says who speaks."""
        self._totals.add(chunk)
        if number not in self._begun:
            self._begun.add(number)
            delta = {"role": "assistant", "content": ""}
            choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
            yield self._event(choice) | self._prompt_ids
        deltas = [self._messages[number].add(part) for part in self._parts(number, chunk)]
        details = self._details(chunk, number)
        if not deltas and chunk.output_ids and details != {"logprobs": None}:
            deltas.append({})  # text is held back, what is known of its tokens is not
        for delta in deltas:
            yield self._event({"index": number, "delta": delta, **details, "finish_reason": None})
            details = {"logprobs": None}
        if chunk.finish_reason:
            yield self._event({"index": number, "delta": {}, "logprobs": None, **self._last(number, chunk)})

    def end(self) -> Iterable[dict[str, Any]]:
        """Return the events after all answers."""
        if self._options.include_usage:
            totals = self._totals
            yield {**self._head, "choices": [], "usage": totals.usage, "metrics": totals.metrics}

    def _parts(self, number: int, chunk: Chunk) -> Iterator[Part]:
        yield from self._readers[number].read(chunk.text)
        if chunk.finish_reason:
            yield from self._readers[number].end()

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "choices": [choice], **self._options.usage_of_event(self._totals.usage)}

    @property
    def _prompt_ids(self) -> dict[str, Any]:
        """Return the tokens of the conversation, which vLLM tells once for each answer, beside its choice."""
        return {"prompt_token_ids": self._asked[0].prompt_ids} if self._body.return_token_ids else {}

    def _details(self, chunk: Chunk, number: int) -> dict[str, Any]:
        """Return what is known of the tokens of a chunk."""
        details: dict[str, Any] = {"logprobs": None}
        if self._body.logprobs:
            details["logprobs"] = chat_log_probs(
                self._model, chunk.output_ids, chunk.log_probs, chunk.top_log_probs
            )
        if self._body.return_token_sources:
            details["token_sources"] = runs_by_source(self._model, chunk)
        if self._body.return_token_ids:
            details["token_ids"] = chunk.output_ids
        return details

    def _last(self, number: int, chunk: Chunk) -> dict[str, Any]:
        has_calls = self._messages[number].has_calls and chunk.finish_reason == "stop"
        reason = "tool_calls" if has_calls else chunk.finish_reason
        told = {"continued_elsewhere": True} if chunk.continued_elsewhere else {}
        return {"finish_reason": reason, "seed": self._asked[number].seed, **told}


def _max_tokens(body: ChatBody, room: int) -> int:
    given = (body.max_completion_tokens, body.max_tokens)
    return next((number for number in given if number is not None), room)
