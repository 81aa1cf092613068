"""Answers ``POST /tokenize`` and ``POST /detokenize``, which vLLM has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from pydantic import JsonValue

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.answering import RouterCalls, json_response
from pipelines.front_door.messages.tools import Tool
from pipelines.front_door.requests.conversation import Message, chat_prompt
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import token_text
from pipelines.text.chunk_boundary import decode_chunk


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class TokenizeBody:
    """The fields of ``/tokenize``; ``prompt`` or ``messages``."""

    model: str = ""
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: tuple[Tool, ...] = ()
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, JsonValue] | None = None
    return_token_strs: bool = False


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class DetokenizeBody:
    """The fields of ``/detokenize``."""

    model: str = ""
    tokens: tuple[int, ...]


async def tokenize(
    request: web.Request, body: TokenizeBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Return the tokens of a text or a conversation.

    Raises:
        InvalidRequestError: The request is invalid.
    """
    if (body.prompt is None) == (body.messages is None):
        found = "both" if body.messages is not None else "neither"
        raise InvalidRequestError(f"of prompt and messages the request has {found}", "send one of them")
    if body.messages is not None:
        ids, _ = await chat_prompt(
            model,
            body.messages,
            [tool.function for tool in body.tools],
            body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
    else:
        add = True if body.add_special_tokens is None else body.add_special_tokens
        ids = await model.encode(body.prompt or "", "prompt", add_special_tokens=add)
    document: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": model.max_seq_len}
    if body.return_token_strs:
        texts = (token_text(model.bytes_of(token_id)) for token_id in ids)
        document["token_strs"] = await asyncio.to_thread(list, texts)
    return json_response(document)


async def detokenize(
    request: web.Request, body: DetokenizeBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Return the text of tokens, special ones by their names.

    Raises:
        InvalidRequestError: An id is outside the vocabulary.
    """

    def work() -> str:
        model.limits.check_ids(body.tokens, "tokens")
        return decode_chunk(b"".join(map(model.bytes_of, body.tokens)))

    return json_response({"prompt": await asyncio.to_thread(work)})
