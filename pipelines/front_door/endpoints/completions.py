"""Answers ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from aiohttp import web
from pydantic import JsonValue

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.answering import Event, RouterCalls, answer
from pipelines.front_door.endpoints.choices import Choices, check_choices, choices_of
from pipelines.front_door.messages.answer_format import content_guide
from pipelines.front_door.requests.sampling import SamplingFields, checked_log_probs, sampling_request
from pipelines.front_door.served_model import ServedModel, TokenIds
from pipelines.front_door.token_details import CompletionLogProbs
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

DEFAULT_MAX_TOKENS = 16  # OpenAI's


@configuration.strict
@dataclass(frozen=True, kw_only=True)
class CompletionBody(SamplingFields):
    """The fields of a request.

    Attributes:
        prompt: A text, token ids, or a list of either.
        max_tokens: Most output tokens of each answer.
        logprobs: Return the log probabilities of output tokens, and of this many likeliest tokens.
        echo: Begin each answer with its prompt, and ``logprobs`` with those of its tokens. ``max_tokens``
            may then be 0.
        add_special_tokens: Put the tokenizer's special tokens, such as BOS, before a text.
    """

    prompt: JsonValue
    max_tokens: int = DEFAULT_MAX_TOKENS
    logprobs: int | None = None
    echo: bool = False
    add_special_tokens: bool = True


async def answer_completion(
    request: web.Request, body: CompletionBody, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    is_one = isinstance(body.prompt, str) or _is_ids(body.prompt)
    given = [body.prompt] if is_one else body.prompt
    if not isinstance(given, list) or not given:
        raise _wrong_prompt(body.prompt)
    check_choices(len(given), body.n)  # before half a million of them are tokenized
    prompts = await _prompt_ids(model, given, add_special_tokens=body.add_special_tokens)
    common = _request_without_prompt(body, model)
    asked = [each for prompt in prompts for each in choices_of(replace(common, prompt_ids=prompt), body.n)]
    return await answer(request, router, asked, _CompletionFormat(body, model, given, asked), body)


async def _prompt_ids(
    model: ServedModel, prompts: Sequence[JsonValue], *, add_special_tokens: bool
) -> list[TokenIds]:
    """Return the tokens of each prompt, a text or token ids."""
    found: list[TokenIds] = []
    for number, each in enumerate(prompts):
        name = "prompt" if len(prompts) == 1 else f"prompt[{number}]"
        if isinstance(each, str):
            ids = await model.encode(each, name, add_special_tokens=add_special_tokens)
        elif _is_ids(each):
            model.limits.check_ids(each, name)
            ids = tuple(each)
        else:
            raise _wrong_prompt(list(prompts))
        model.limits.check_length(len(ids), name)
        found.append(ids)
    return found


def _is_ids(prompt: JsonValue) -> TypeGuard[list[int]]:
    return isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)


def _wrong_prompt(prompt: JsonValue) -> InvalidRequestError:
    return InvalidRequestError(
        f"prompt={prompt!r:.200} is neither a text nor token ids, nor a list of either, or it is empty",
        "send one of these",
    )


def _request_without_prompt(body: CompletionBody, model: ServedModel) -> CompletionRequest:
    max_tokens = 1 if body.echo and body.max_tokens == 0 else body.max_tokens  # it is left out of the answer
    scores_prompt = body.echo and body.logprobs is not None
    common = sampling_request(body, model.defaults, max_tokens)
    if scores_prompt and max_tokens == 1:
        # Clients that score texts ask for one more token and drop the last entry, also if it is an end token.
        common = replace(common, end_id=-1)
    return replace(
        common,
        guide=content_guide(body.form, body.structured_outputs),
        num_log_probs=None if body.logprobs is None else checked_log_probs("logprobs", body.logprobs),
        return_prompt_log_probs=scores_prompt,
    )


class _CompletionFormat(Choices):
    """Writes the answers to one request.

    Args:
        body: The request.
        model: The model.
        given: Its prompts as they were sent: texts or token ids.
        asked: A request for each answer; ``n`` for each prompt.
    """

    def __init__(
        self,
        body: CompletionBody,
        model: ServedModel,
        given: Sequence[Any],
        asked: Sequence[CompletionRequest],
    ) -> None:
        super().__init__(body, model, asked, "cmpl", "text_completion")
        self._body = body
        self._given = given
        self._log_probs = [CompletionLogProbs(model) for _ in asked]

    def events(self, number: int, chunk: Chunk) -> Iterable[Event]:
        """Return the event for a chunk of an answer."""
        yield self._event(self._choice(number, chunk))

    def _choice(self, number: int, chunk: Chunk) -> dict[str, Any]:
        if not self._body.max_tokens:  # only the prompt was asked for
            chunk = _without_tokens(chunk)
        is_first = self._begins(number, chunk)
        has_prompt = self._body.echo and is_first
        choice: dict[str, Any] = {
            "index": number,
            "text": (self._prompt_text(number) if has_prompt else "") + chunk.text,
            "logprobs": None,
            "finish_reason": chunk.finish_reason or None,
            **self._details(chunk),
        }
        if self._body.logprobs is not None:
            choice["logprobs"] = self._log_probs_of(number, chunk, with_prompt=has_prompt)
        if chunk.finish_reason:
            choice["seed"] = self._asked[number].seed
        if chunk.continued_elsewhere:
            choice["continued_elsewhere"] = True
        if self._body.return_token_ids and is_first:
            choice["prompt_token_ids"] = self._asked[number].prompt_ids
        return choice

    def _prompt_text(self, number: int) -> str:
        given = self._given[number // self._body.n]
        return given if isinstance(given, str) else self._model.text_of(given)

    def _log_probs_of(self, number: int, chunk: Chunk, *, with_prompt: bool) -> dict[str, Any]:
        if not with_prompt:
            log_probs = chunk.output_ids, chunk.log_probs, chunk.top_log_probs
            return self._log_probs[number].document(*log_probs)
        return self._log_probs[number].document(
            (*self._asked[number].prompt_ids, *chunk.output_ids),
            (None, *chunk.prompt_log_probs, *chunk.log_probs),
            (None, *chunk.prompt_top_log_probs, *chunk.top_log_probs) if self._body.logprobs else (),
        )


def _without_tokens(chunk: Chunk) -> Chunk:
    ending = "length" if chunk.finish_reason else ""
    chunk = replace(chunk, text="", finish_reason=ending, output_ids=(), token_sources=())
    return replace(chunk, log_probs=(), top_log_probs=())
