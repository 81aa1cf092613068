"""Requests that begin with one of several system prompts, some of which are more popular than others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.bench.loads import poisson_arrivals
from pipelines.client import CompletionRequest
from pipelines.command_line.prompts import Prompts
from pipelines.errors import InvalidRequestError


@dataclass(frozen=True)
class Workload:
    """Requests that the fleet gets.

    Attributes:
        num_texts: System prompts, whose popularity falls as one over their rank.
        text_tokens: Least tokens of each of them.
        question_tokens: Most tokens of what follows it.
        max_tokens: Output tokens of each answer.
        requests_per_s: Mean rate of arrivals, which are independent.
        num_warm_up: Requests before those that are measured, so that the caches are as this choice of
            servers leaves them.
        num_requests: Requests that are measured.
    """

    num_texts: int = 24
    text_tokens: int = 512
    question_tokens: int = 64
    max_tokens: int = 32
    requests_per_s: float = 1.5
    num_warm_up: int = 40
    num_requests: int = 60


@dataclass(frozen=True)
class Batch:
    """Requests of one run, and when they arrive, in seconds from its start."""

    requests: tuple[CompletionRequest, ...]
    arrivals_s: tuple[float, ...]


def texts_of(prompts: Prompts, workload: Workload) -> list[str]:
    """Join prompts of the largest set to system prompts; each is used once, so their beginnings differ.

    Args:
        prompts: Prompts whose tokens are counted.
        workload: How many, and how long.

    Raises:
        InvalidRequestError: There are too few prompts.
    """
    texts: list[str] = []
    parts: list[str] = []
    num_tokens = 0
    for prompt in prompts.of_largest_set().all:
        parts.append(prompt.text)
        num_tokens += prompt.num_tokens or 0
        if num_tokens >= workload.text_tokens:
            texts.append("\n\n".join(parts))
            parts, num_tokens = [], 0
        if len(texts) == workload.num_texts:
            return texts
    raise InvalidRequestError(
        "there are too few prompts for the system prompts",
        values=f"{len(texts)} system prompts",
        limit=f"{workload.num_texts} of {workload.text_tokens} tokens",
        remedy="use longer or more prompts",
    )


def questions_of(prompts: Prompts, workload: Workload) -> list[str]:
    """Return the prompts of the other sets that are short enough to follow a system prompt."""
    used = {prompt.prompt_id for prompt in prompts.of_largest_set().all}
    return [
        prompt.text
        for prompt in prompts.all
        if prompt.prompt_id not in used and (prompt.num_tokens or 0) <= workload.question_tokens
    ]


def draw(texts: Sequence[str], questions: Sequence[str], workload: Workload, count: int, seed: int) -> Batch:
    """Draw the requests of one run; the same seed gives the same requests at the same times."""
    drawn = random.Random(seed)
    weights = [1 / rank for rank in range(1, len(texts) + 1)]
    chosen = drawn.choices(texts, weights, k=count)
    requests = tuple(
        CompletionRequest(
            f"{text}\n\n{drawn.choice(questions)}", max_tokens=workload.max_tokens, temperature=0.0
        )
        for text in chosen
    )
    return Batch(requests, poisson_arrivals(workload.requests_per_s, count, seed))
