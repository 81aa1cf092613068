"""Pairs whose drafts are mostly wrong; one request has every kind of parameter (``tests/exact`` has each)."""

from __future__ import annotations

from typing import Any

from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from tests.statistical.tables import PROMPT, Pair, Ranks, agree, reverse, rotate


def _pair(
    name: str,
    vocab_size: int,
    num_draft_tokens: int,
    spread: float,
    sampling: dict[str, Any],
    ranks: Ranks = reverse,
    **other: Any,
) -> Pair:
    request = GenerationRequest(
        name, PROMPT, num_draft_tokens + 2, sampling=SamplingParams(**sampling), **other
    )
    return Pair(name, vocab_size, num_draft_tokens, request, spread, ranks)


REVERSED = _pair("temperature, reversed draft", 4, 1, 2.0, {"temperature": 0.8})
PAIRS = (
    REVERSED,
    _pair("temperature", 4, 2, 3.5, {"temperature": 0.8}, rotate),
    _pair(
        "all parameters",
        4,
        3,
        3.4,
        {
            "temperature": 1.4,
            "top_k": 3,
            "top_p": 0.95,
            "min_p": 0.05,
            "repetition_penalty": 1.2,
            "presence_penalty": -0.3,
            "frequency_penalty": 0.4,
            "min_tokens": 3,
            "logit_bias": ((2, -0.4),),
        },
        bad_words=(b"cc",),
        end_ids=(3,),
    ),
)

LONG = Pair(
    "temperature, long answers",
    3,
    2,
    GenerationRequest("long", PROMPT, 12, sampling=SamplingParams(temperature=0.8)),
    2.5,
    ranks=agree,
    first_is_certain=False,
)
"""No token is certain, and many rounds follow a full acceptance."""
