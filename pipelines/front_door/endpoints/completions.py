"""Answers ``POST /v1/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web
from pydantic import JsonValue

from pipelines import configuration
from pipelines.client.generation import Chunk
from pipelines.front_door.answering import answer
from pipelines.front_door.messages.answer_format import content_guide
from pipelines.front_door.requests.body import read_body
from pipelines.front_door.requests.prompts import TokenIds, prompt_ids, prompts_of
from pipelines.front_door.requests.sampling import (
    SamplingFields,
    StreamOptions,
    check_choices,
    check_model,
    checked_log_probs,
    sampling_request,
    seed_of_choice,
)
from pipelines.front_door.router_calls import RouterCalls
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import CompletionLogProbs, Totals, runs_by_source
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
    request: web.Request, model: ServedModel, router: RouterCalls
) -> web.StreamResponse:
    """Answer one request.

    Raises:
        DraftproofError: The request is invalid, or no answer could be had.
    """
    body = await read_body(CompletionBody, request)
    check_model(body.model, model)
    texts = prompts_of(body.prompt)
    check_choices(len(texts), body.n)  # before half a million of them are tokenized
    prompts = await prompt_ids(model, texts, add_special_tokens=body.add_special_tokens)
    common = _request_without_prompt(body, model)
    assert common.seed is not None
    asked = [
        replace(common, prompt_ids=prompt, seed=seed_of_choice(common.seed, number))
        for prompt in prompts
        for number in range(body.n)
    ]
    form = _CompletionFormat(body, model, texts, prompts, asked)
    return await answer(request, router, asked, form, body)


def _request_without_prompt(body: CompletionBody, model: ServedModel) -> CompletionRequest:
    max_tokens = 1 if body.echo and body.max_tokens == 0 else body.max_tokens  # it is left out of the answer
    scores_prompt = body.echo and body.logprobs is not None
    common = sampling_request(body, model.defaults, max_tokens)
    if scores_prompt and max_tokens == 1:
        # Clients that score texts ask for one more token and drop the last entry, also if it is an end token.
        common = replace(common, end_id=-1)
    return replace(
        common,
        guide=content_guide(body.response_format, body.structured_outputs),
        num_log_probs=None if body.logprobs is None else checked_log_probs("logprobs", body.logprobs),
        return_prompt_log_probs=scores_prompt,
    )


class _CompletionFormat:
    """Writes the answers to one request.

    Args:
        body: The request.
        model: The model.
        given: Its prompts as they were sent: texts or token ids.
        prompts: Their tokens.
        asked: A request for each answer; ``n`` for each prompt.
    """

    def __init__(
        self,
        body: CompletionBody,
        model: ServedModel,
        given: Sequence[Any],
        prompts: Sequence[TokenIds],
        asked: Sequence[CompletionRequest],
    ) -> None:
        self._body = body
        self._model = model
        self._options = body.stream_options or StreamOptions()
        self._asked = asked
        self._totals = Totals(sum(map(len, prompts)), len(asked))
        self._begun: set[int] = set()
        self._log_probs = [CompletionLogProbs(model) for _ in asked]
        self._given = given
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        choices = [self._choice(number, each) for number, each in enumerate(answers)]
        totals = self._totals
        return {**self._head, "choices": choices, "usage": totals.usage, "metrics": totals.metrics}

    def events(self, number: int, chunk: Chunk) -> Iterable[dict[str, Any]]:
        """Return the event for a chunk of an answer."""
        document = {**self._head, "choices": [self._choice(number, chunk)]}
        yield document | self._options.usage_of_event(self._totals.usage)

    def end(self) -> Iterable[dict[str, Any]]:
        """Return the events after all answers."""
        if self._options.include_usage:
            totals = self._totals
            yield {**self._head, "choices": [], "usage": totals.usage, "metrics": totals.metrics}

    def _choice(self, number: int, chunk: Chunk) -> dict[str, Any]:
        if not self._body.max_tokens:  # only the prompt was asked for
            ending = "length" if chunk.finish_reason else ""
            chunk = replace(
                chunk,
                text="",
                output_ids=(),
                log_probs=(),
                top_log_probs=(),
                token_sources=(),
                finish_reason=ending,
            )
        self._totals.add(chunk)
        is_first = number not in self._begun
        self._begun.add(number)
        prompt = self._prompt_text(number) if self._body.echo and is_first else ""
        choice: dict[str, Any] = {
            "index": number,
            "text": prompt + chunk.text,
            "logprobs": None,
            "finish_reason": chunk.finish_reason or None,
        }
        if self._body.logprobs is not None:
            choice["logprobs"] = self._log_probs_of(number, chunk, with_prompt=self._body.echo and is_first)
        if chunk.finish_reason:
            choice["seed"] = self._asked[number].seed
        if chunk.continued_elsewhere:
            choice["continued_elsewhere"] = True
        if self._body.return_token_sources:
            choice["token_sources"] = runs_by_source(self._model, chunk)
        if self._body.return_token_ids:
            choice["token_ids"] = chunk.output_ids
            if is_first:
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
