"""Answers ``POST /v1/responses``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from aiohttp import web
from pydantic import JsonValue
from pydantic_core import to_json

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.access.clients import CLIENT
from pipelines.front_door.answering import answer
from pipelines.front_door.endpoints.kept_responses import KEPT, KEPT_S
from pipelines.front_door.messages.message import Content, Part, Thought
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.response_document import ResponseDocument
from pipelines.front_door.messages.tools import Function
from pipelines.front_door.requests.conversation import Conversation, Message, MessageFields, message_request
from pipelines.front_door.requests.response_items import messages_of, said, with_ids
from pipelines.front_door.requests.sampling import num_log_probs
from pipelines.front_door.router_calls import RouterCalls
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import TextLogProbs, ThoughtTokens
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

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

    Attributes:
        input: The user's text, or the items of the conversation.
        instructions: The system's message.
        max_output_tokens: Most output tokens; None for all that fit.
        tools: Functions that the model may call.
        text: Form of the answer's text.
        include: With "message.output_text.logprobs", return the log probabilities of the text's tokens;
            other entries mean nothing here.
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
    def max_output(self) -> int | None:
        """Most output tokens."""
        return self.max_output_tokens

    @property
    def num_log_probs(self) -> int | None:
        """See ``sampling.num_log_probs``."""
        return num_log_probs(LOG_PROBS in (self.include or ()), self.top_logprobs, f'include=["{LOG_PROBS}"]')

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
        if self.n != 1 or self.response_format is not None:
            name = "n" if self.n != 1 else "response_format"
            raise InvalidRequestError(
                f"{name}={getattr(self, name)!r:.200} belongs to /v1/chat/completions",
                "send one request for each answer, with its form in text.format",
            )

    def to_conversation(self) -> Conversation:
        """Return the conversation to render.

        Raises:
            InvalidRequestError: An item is none that can be rendered.
        """
        first: list[Message] = [] if self.instructions is None else [said("system", self.instructions)]
        messages = (*first, *messages_of(self.input))
        return Conversation(messages, functions=self.tools, variables=self.variables())


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
        items = with_ids(body.input)
        if body.previous_response_id is None or not isinstance(items, list):
            return items
        return [*kept.conversation(owner, body.previous_response_id), *items]

    items = await asyncio.to_thread(conversation)  # there may be very many
    asked, new_reader = await message_request(replace(body, input=items), model, "input")

    def keep(response: dict[str, Any]) -> None:
        if body.store:
            kept.keep(owner, response, before)

    before = await asyncio.to_thread(to_json, items) if body.store else b""
    form = _ResponseFormat(body, model, asked, new_reader(), keep)
    try:
        return await answer(request, model, router, [asked], form, body)
    finally:
        asyncio.get_running_loop().call_later(KEPT_S, kept.drop_old)


class _ResponseFormat:
    """Writes the answer to one request.

    Args:
        body: The request.
        model: The model.
        asked: The request to the model.
        reader: Reads the answer.
        keep: Keeps the response before a client knows that it is complete.
    """

    def __init__(
        self,
        body: ResponsesBody,
        model: ServedModel,
        asked: CompletionRequest,
        reader: MessageReader,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:
        self._model = model
        self._asked = asked
        self._reader, self._keep = reader, keep
        self._log_probs = None if asked.num_log_probs is None else TextLogProbs(model)
        self._thoughts = ThoughtTokens(model)
        self._has_begun = self._has_thoughts = False
        self._response = ResponseDocument(
            {
                "model": model.name,
                "system_fingerprint": model.fingerprint,
                "seed": asked.seed,
                "instructions": body.instructions,
                "max_output_tokens": body.max_output_tokens,
                "temperature": asked.temperature,
                "top_p": asked.top_p,
                "presence_penalty": asked.presence_penalty,
                "frequency_penalty": asked.frequency_penalty,
                "top_logprobs": asked.num_log_probs or 0,
                "tools": [asdict(function) for function in body.tools],
                "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
                "parallel_tool_calls": body.parallel_tool_calls is not False,
                "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
                "max_tool_calls": body.max_tool_calls,
                "service_tier": "default",
                "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
                "metadata": body.metadata or {},
                "user": body.user,
                "safety_identifier": body.safety_identifier,
                "prompt_cache_key": body.prompt_cache_key,
                "previous_response_id": body.previous_response_id,
                "store": body.store,
                "truncation": body.truncation,
                **body.warning_fields,
            }
        )

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        list(self.events(0, answers[0]))
        return self._response.document

    def events(self, number: int, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Return the events for a chunk of the answer, the first with those that begin the response."""
        yield from self._begin()
        self._thoughts.add(chunk.output_ids)
        if self._log_probs is not None:
            self._log_probs.add(chunk)
        for part in self._reader.read(chunk.text, is_last=bool(chunk.finish_reason)):
            yield from self._add(part)
        if chunk.finish_reason:
            if self._log_probs is not None and (rest := self._log_probs.rest()):
                yield from self._response.add(Content("", place=0), rest)
            if chunk.continued_elsewhere:
                self._response.document["continued_elsewhere"] = True
            usage = self._usage(chunk.sequence_length, chunk.num_cached)
            ending = list(self._response.end(chunk.finish_reason, usage))
            self._keep(self._response.document)
            yield from ending

    def sign(self) -> Iterable[dict[str, Any]]:
        """Return the events that begin the response, or its state: Codex counts no comments."""
        return list(self._begin()) or [self._response.state()]

    def end(self) -> Iterable[dict[str, Any]]:
        """Return the events after all answers."""
        return ()

    def _begin(self) -> Iterator[dict[str, Any]]:
        if not self._has_begun:
            self._has_begun = True
            yield from self._response.begin()

    def _add(self, part: Part) -> Iterator[dict[str, Any]]:
        self._has_thoughts |= isinstance(part, Thought)
        if self._log_probs is not None and isinstance(part, Content):
            return self._response.add(part, self._log_probs.take(part))
        return self._response.add(part)

    def _usage(self, num_output: int, num_cached: int) -> dict[str, Any]:
        num_prompt = len(self._asked.prompt_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": num_cached, "cache_write_tokens": 0},
            "output_tokens": num_output,
            "output_tokens_details": {"reasoning_tokens": self._thoughts.number if self._has_thoughts else 0},
            "total_tokens": num_prompt + num_output,
        }
