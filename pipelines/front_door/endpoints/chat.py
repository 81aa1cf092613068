"""Answers ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.answering import Event, RouterCalls, answer
from pipelines.front_door.endpoints.choices import Choices, check_choices, choices_of
from pipelines.front_door.messages.message import MessageDocument, Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.tools import Function, Tool
from pipelines.front_door.requests.conversation import Message, MessageFields, chat_prompt, message_request
from pipelines.front_door.requests.sampling import checked_log_probs
from pipelines.front_door.served_model import ServedModel, TokenIds
from pipelines.front_door.token_details import ThoughtTokens, chat_log_probs
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class ChatBody(MessageFields):
    """The fields of a request.

    Attributes:
        messages: The conversation.
        max_completion_tokens: Most output tokens; None for all that fit.
        max_tokens: Older name of ``max_completion_tokens``.
        logprobs: Return the log probabilities of output tokens.
        top_logprobs: Return those of this many likeliest tokens too.
        tools: Functions that the model may call.
        reasoning_effort: "none" turns thoughts off; other values mean nothing here.
        add_generation_prompt: End the prompt with the beginning of an answer.
        continue_final_message: Continue the last message instead of answering it.
    """

    messages: tuple[Message, ...]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: tuple[Tool, ...] = ()
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions of ``tools``."""
        return tuple(tool.function for tool in self.tools)

    async def rendered(self, model: ServedModel) -> tuple[TokenIds, Thinking]:
        """Return the tokens of the conversation, and how its answer begins; see ``chat_prompt``."""
        return await chat_prompt(
            model,
            self.messages,
            self.functions,
            self.variables(self.reasoning_effort),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )


async def answer_chat(
    request: web.Request, body: ChatBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    check_choices(1, body.n)
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    common, new_reader = await message_request(body, model, "messages", most, _num_log_probs(body))
    asked = choices_of(common, body.n)
    return await answer(request, router, asked, _ChatFormat(body, model, asked, new_reader), body)


def _num_log_probs(body: ChatBody) -> int | None:
    """Return of how many likeliest tokens log probabilities are returned too; None to return none at all."""
    if body.logprobs:
        return checked_log_probs("top_logprobs", body.top_logprobs or 0)
    if body.top_logprobs:
        raise InvalidRequestError(
            f"top_logprobs={body.top_logprobs} needs logprobs=true", "send both, or leave top_logprobs out"
        )
    return None


class _ChatFormat(Choices):
    """Writes the answers to one request.

    Args:
        body: The request.
        model: The model.
        asked: A request for each answer.
        new_reader: Returns a reader of one answer.
    """

    def __init__(
        self,
        body: ChatBody,
        model: ServedModel,
        asked: Sequence[CompletionRequest],
        new_reader: Callable[[], MessageReader],
    ) -> None:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        super().__init__(body, model, asked, "chatcmpl", kind)
        self._body = body
        self._readers = [new_reader() for _ in asked]
        self._messages = [MessageDocument() for _ in asked]
        self._thoughts = [ThoughtTokens(model) for _ in asked]

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        return super().whole(answers) | self._prompt_ids

    def _choice(self, number: int, chunk: Chunk) -> dict[str, Any]:
        self._begins(number, chunk)
        self._deltas(number, chunk)
        choice = {"index": number, "message": self._messages[number].document, **self._details(chunk)}
        return choice | self._ending(number, chunk)

    def events(self, number: int, chunk: Chunk) -> Iterable[Event]:
        """Return the events for a chunk of an answer; the first one of an answer says who speaks."""
        if self._begins(number, chunk):
            delta = {"role": "assistant", "content": ""}
            choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
            yield self._event(choice) | self._prompt_ids
        deltas = self._deltas(number, chunk)
        details = self._details(chunk)
        if not deltas and chunk.output_ids and details != {"logprobs": None}:
            deltas.append({})  # text is held back, what is known of its tokens is not
        for delta in deltas:
            yield self._event({"index": number, "delta": delta, **details, "finish_reason": None})
            details = {"logprobs": None}
        if chunk.finish_reason:
            yield self._event({"index": number, "delta": {}, "logprobs": None, **self._ending(number, chunk)})

    def _deltas(self, number: int, chunk: Chunk) -> list[dict[str, Any]]:
        self._thoughts[number].add(chunk.output_ids)
        parts = self._readers[number].read(chunk.text, is_last=bool(chunk.finish_reason))
        return [self._messages[number].add(part) for part in parts]

    @property
    def _num_thought_tokens(self) -> int:
        """Tokens of thoughts so far."""
        numbers = zip(self._messages, self._thoughts, strict=True)
        return sum(thoughts.number for message, thoughts in numbers if message.has_thoughts)

    @property
    def _prompt_ids(self) -> dict[str, Any]:
        """The tokens of the conversation, which vLLM tells once for each answer, beside its choice."""
        return {"prompt_token_ids": self._asked[0].prompt_ids} if self._body.return_token_ids else {}

    def _details(self, chunk: Chunk) -> dict[str, Any]:
        log_probs = None
        if self._body.logprobs:
            log_probs = chat_log_probs(self._model, chunk.output_ids, chunk.log_probs, chunk.top_log_probs)
        return {"logprobs": log_probs, **super()._details(chunk)}

    def _ending(self, number: int, chunk: Chunk) -> dict[str, Any]:
        has_calls = self._messages[number].has_calls and chunk.finish_reason == "stop"
        reason = "tool_calls" if has_calls else chunk.finish_reason
        told = {"continued_elsewhere": True} if chunk.continued_elsewhere else {}
        return {"finish_reason": reason, "seed": self._asked[number].seed, **told}
