"""Answers ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``, which Anthropic's API has."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from aiohttp import web
from pydantic import JsonValue

from pipelines import configuration
from pipelines.front_door.answering import Event, Format, RouterCalls, answer, json_response
from pipelines.front_door.endpoints.chat import ChatBody
from pipelines.front_door.messages.message import (
    CallArguments,
    CallBegin,
    Content,
    Part,
    Thought,
    read_arguments,
)
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.requests import message_blocks
from pipelines.front_door.requests.conversation import Message, message_request
from pipelines.front_door.requests.fields import with_warnings
from pipelines.front_door.requests.sampling import PASSED_ON, PassedOn
from pipelines.front_door.served_model import ServedModel
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest


@dataclass(frozen=True, kw_only=True)
class ThinkingConfig:
    """Whether the model thinks before it answers; the other fields mean nothing here."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Any = None
    display: Any = None


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """The form of the answer's text; ``effort`` means nothing here."""

    format: Message | None = None
    effort: Any = None


class ChatOfBlocks(ChatBody):
    """A request in the words of chat."""

    form_field: ClassVar[str] = "output_config.format"


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class CountBody(PassedOn):
    """The fields of a conversation, and those that reach the router as they are.

    The fields at the end mean nothing here.

    Attributes:
        messages: The conversation; an assistant's message with text at its end is continued.
        system: The system's text, or its blocks.
        tools: Tools that the model may call; see ``message_blocks.chats_tools``.
        tool_choice: Whether the model may, must or must not call a tool, or which.
        thinking: Whether the model thinks; None for no.
        output_config: Form of the answer's text.
        chat_template_kwargs: As in chat.
    """

    model: str = ""
    messages: tuple[Message, ...]
    system: JsonValue = None
    tools: tuple[Message, ...] = ()
    tool_choice: dict[str, JsonValue] | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    metadata: Any = None
    service_tier: Any = None
    cache_control: Any = None
    context_management: Any = None
    inference_geo: Any = None
    speed: Any = None
    diagnostics: Any = None
    betas: Any = None
    anthropic_beta: Any = None
    anthropic_version: Any = None

    def to_chat(self, **others: Any) -> ChatBody:
        """Return the request in the words of chat.

        Args:
            **others: Further fields of chat.

        Raises:
            InvalidRequestError: A block, a tool or the choice of one is none that can be read.
        """
        messages = message_blocks.messages_of_blocks(self.system, self.messages)
        choice, last = self.tool_choice or {"type": "auto"}, messages[-1] if messages else {}
        is_prefill = last.get("role") == "assistant" and bool(last["content"]) and "tool_calls" not in last
        is_thinking = self.thinking is not None and self.thinking.type != "disabled"
        others["warnings"] = message_blocks.left_out(self.tools, self.messages)
        form = self.output_config.format if self.output_config is not None else None
        return ChatOfBlocks(
            messages=tuple(messages),
            tools=message_blocks.chats_tools(self.tools, self.messages, choice.get("name")),
            tool_choice=message_blocks.chats_choice(choice),
            parallel_tool_calls=choice.get("disable_parallel_tool_use") is not True,
            response_format=form and {"type": form.get("type"), "json_schema": {**form, "strict": True}},
            chat_template_kwargs={"enable_thinking": is_thinking, **(self.chat_template_kwargs or {})},
            continue_final_message=is_prefill,
            **{name: getattr(self, name) for name in PASSED_ON},
            **others,
        )


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class MessagesBody(CountBody):
    """The fields of a request.

    Attributes:
        max_tokens: Most output tokens; an answer that reaches the end of the context before ends there.
        stop_sequences: Texts before which the answer ends.
        stream: Send events.
        logit_bias: As in chat.
    """

    max_tokens: int
    stop_sequences: tuple[str, ...] = ()
    stream: bool = False
    logit_bias: dict[str, float] | None = None


async def count_tokens(
    request: web.Request, body: CountBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Return how many tokens the prompt of a conversation has.

    Raises:
        DraftproofError: The conversation cannot be rendered.
    """
    chat = await asyncio.to_thread(body.to_chat)
    ids, _ = await chat.rendered(model)
    return json_response({"input_tokens": len(ids)})


async def answer_message(
    request: web.Request, body: MessagesBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    fields: dict[str, Any] = {"stop": list(body.stop_sequences), "logit_bias": body.logit_bias}
    fields |= {"max_tokens": body.max_tokens, "stream": body.stream}
    chat = await asyncio.to_thread(partial(body.to_chat, **fields))  # there may be very many blocks
    chat = await with_warnings(chat, model.style(with_tools=True).calls)
    asked, new_reader = await message_request(chat, model, "messages", chat.max_tokens)
    asked = replace(asked, max_tokens=min(asked.max_tokens, model.max_seq_len - len(asked.prompt_ids)))
    form = _MessageFormat(chat, model, asked, new_reader())
    return await answer(request, router, [asked], form, chat)


class _MessageFormat(Format):
    """Writes the answer to one request, block by block.

    The order of events is that of https://docs.claude.com/en/docs/build-with-claude/streaming

    Args:
        chat: The request in the words of chat.
        model: The model. Its fingerprint stands in blocks of thoughts, which clients expect to be signed.
        asked: The request to the model.
        reader: Reads the answer.
    """

    def __init__(
        self, chat: ChatBody, model: ServedModel, asked: CompletionRequest, reader: MessageReader
    ) -> None:
        self._chat, self._model, self._asked, self._reader = chat, model, asked, reader
        self._output_ids: list[int] = []
        self._num_cached = 0
        self._open: dict[str, Any] | None = None  # the block that parts are added to
        self._arguments = ""  # JSON of the call that is open
        self._has_begun = False
        self._blocks: list[dict[str, Any]] = []
        self._message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "content": self._blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "seed": asked.seed,
            "usage": self._usage(),
            **chat.warning_fields,
        }

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        list(self.events(0, answers[0]))
        return self._message

    def events(self, number: int, chunk: Chunk) -> Iterator[Event]:
        """Yield the events for a chunk of the answer, the first with those that begin the message."""
        if not self._has_begun:
            self._has_begun = True
            yield {"type": "message_start", "message": copy.deepcopy(self._message)}
            yield {"type": "ping"}
        self._output_ids += chunk.output_ids
        self._num_cached = chunk.num_cached
        for part in self._reader.read(chunk.text, is_last=chunk.is_last):
            yield from self._add(part)
        if chunk.continued_elsewhere:
            self._message["continued_elsewhere"] = True
        if chunk.is_last:
            yield from self._close()
            reason, word = self._ending(chunk.finish_reason)
            ending, usage = {"stop_reason": reason, "stop_sequence": word}, self._usage()
            self._message |= {**ending, "usage": usage}
            yield {"type": "message_delta", "delta": ending, "usage": usage}
            yield {"type": "message_stop"}

    def sign(self) -> Iterable[Event]:
        """Return Anthropic's event for this."""
        return ({"type": "ping"},)

    def _add(self, part: Part) -> Iterator[Event]:
        match part:
            case Thought(text):
                yield from self._add_text("thinking", "thinking", text, {"signature": ""})
            case Content(text):
                yield from self._add_text("text", "text", text, {"citations": None})
            case CallBegin(call_id, name):
                yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case CallArguments(text):
                self._arguments += text
                yield self._delta("input_json", "partial_json", text)

    def _add_text(self, kind: str, key: str, text: str, fields: dict[str, Any]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            yield from self._begin({"type": kind, key: "", **fields})
        self._blocks[-1][key] += text
        yield self._delta(kind, key, text)

    def _begin(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self._open = block
        self._blocks.append(block)
        yield self._of_block("start", content_block=dict(block))

    def _close(self) -> Iterator[Event]:
        if self._open is None:
            return
        if self._open["type"] == "thinking":
            self._open["signature"] = self._model.fingerprint
            yield self._delta("signature", "signature", self._model.fingerprint)
        elif self._open["type"] == "tool_use":
            self._open["input"], self._arguments = read_arguments(self._arguments), ""
        self._open = None
        yield self._of_block("stop")

    def _delta(self, kind: str, key: str, text: str) -> Event:
        return self._of_block("delta", delta={"type": f"{kind}_delta", key: text})

    def _of_block(self, what: str, **fields: Any) -> Event:
        return {"type": f"content_block_{what}", "index": len(self._blocks) - 1, **fields}

    def _ending(self, finish_reason: str) -> tuple[str, str | None]:
        """Return why the answer ends, and at which stop word."""
        if finish_reason == "length":
            is_context = self._asked.max_tokens < (self._chat.max_tokens or 0)
            return "model_context_window_exceeded" if is_context else "max_tokens", None
        output = self._model.tokenizer.vocabulary.join(self._output_ids)
        if (word := first_word(output, self._asked.stop_words)) is not None:
            return "stop_sequence", word
        has_calls = any(block["type"] == "tool_use" for block in self._blocks)
        return "tool_use" if has_calls else "end_turn", None

    def _usage(self) -> dict[str, int]:
        num_computed, num_output = len(self._asked.prompt_ids) - self._num_cached, len(self._output_ids)
        cached = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": self._num_cached}
        return {"input_tokens": num_computed, **cached, "output_tokens": num_output}


def first_word(text: bytes, words: Iterable[str]) -> str | None:
    """Return the stop word before which a text was cut; None if it has none."""
    found = [(place, len(word), word) for word in words if (place := text.find(word.encode())) >= 0]
    return min(found)[2] if found else None
