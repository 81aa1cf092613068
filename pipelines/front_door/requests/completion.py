"""The body of ``POST /v1/completions``."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from pipelines import configuration
from pipelines.front_door.requests.sampling import SamplingFields

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
