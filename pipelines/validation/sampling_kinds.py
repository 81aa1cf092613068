"""How tokens are chosen in a pass: greedily or with a seed, with plain parameters or with every other one.

The sets of parameters rotate over the prompts, so one pass of a kind holds them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pipelines.client import CompletionRequest

GREEDY, GREEDY_PARAMETERS = "greedy", "greedy, parameters"
SEEDED, SEEDED_PARAMETERS = "seeded", "seeded, parameters"
KINDS = (GREEDY, GREEDY_PARAMETERS, SEEDED, SEEDED_PARAMETERS)

TEMPERATURE = 0.8
MAX_LOG_PROBS = 20

# "min_tokens": True stands for a share of max_tokens and "logit_bias": n for n tokens; see request_of.
# Bad words and stop words are pieces of code, so that prompts of code run into them.
_FOR_ALL: tuple[Mapping[str, Any], ...] = (
    {"repetition_penalty": 1.2, "num_log_probs": 0},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4, "num_log_probs": 2},
    {"repetition_penalty": 0.9, "presence_penalty": -0.5},
    {"bad_words": ("self", "\n\n", "return")},
    {"bad_words": ("e",), "frequency_penalty": 0.3, "num_log_probs": 3},
    {"stop_words": ("\n\n\n", "class "), "min_tokens": True, "num_log_probs": 1},
    {"stop_words": (")",), "min_tokens": True, "bad_words": ("(",)},
    {"min_tokens": True, "logit_bias": 3, "num_log_probs": MAX_LOG_PROBS},
    {"logit_bias": 40},
)
_SAMPLED_ONLY: tuple[Mapping[str, Any], ...] = (
    {"top_k": 20, "num_log_probs": 5},
    {"top_p": 0.9},
    {"min_p": 0.05, "temperature": 1.3},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.02, "temperature": 1.0, "num_log_probs": 1},
    {"top_k": 1},
    {"temperature": 0.3, "top_p": 0.5, "repetition_penalty": 1.1},
    {
        "temperature": 1.1,
        "top_k": 200,
        "min_p": 0.01,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.2,
        "bad_words": ("import", "None"),
        "stop_words": ("\n\n\n",),
        "min_tokens": True,
        "logit_bias": 5,
        "num_log_probs": 4,
    },
)

PARAMETERS: Mapping[str, tuple[Mapping[str, Any], ...]] = MappingProxyType(
    {
        GREEDY: ({},),
        GREEDY_PARAMETERS: _FOR_ALL,
        SEEDED: ({},),
        SEEDED_PARAMETERS: (*_SAMPLED_ONLY, *_FOR_ALL),
    }
)
"""Kind -> the sets that rotate over its prompts."""


def is_greedy(kind: str) -> bool:
    """Whether the kind needs no seed."""
    return kind in (GREEDY, GREEDY_PARAMETERS)


def request_of(kind: str, index: int, text: str, max_tokens: int) -> CompletionRequest:
    """The request for one prompt.

    Args:
        kind: One of ``KINDS``.
        index: The prompt's; picks seed, parameters and biased tokens. A kind with parameters is asked
            with every second prompt.
        text: The prompt.
        max_tokens: Output tokens at most.
    """
    sets = PARAMETERS[kind]
    values = dict(sets[index // 2 % len(sets)])
    if values.pop("min_tokens", False):
        values["min_tokens"] = max_tokens // 3
    if num_biased := values.pop("logit_bias", 0):
        values["logit_bias"] = _bias(index, num_biased)
    request = CompletionRequest(text, max_tokens=max_tokens)
    if not is_greedy(kind):
        request = replace(request, temperature=TEMPERATURE, seed=seed_of(index))
    return replace(request, **values)


def seed_of(index: int) -> int:
    """A prompt's seed; small ones and those near the ends of 32, 53 and 64 bits take turns."""
    ends = (0, 2**32 - 1000, 2**53 - 1000, 2**64 - 1000)
    return ends[index // 2 % len(ends)] + index % 1000


def _bias(index: int, num_biased: int) -> tuple[tuple[int, float], ...]:
    """Some of the first few hundred tokens, which every vocabulary has, up or down by up to 6."""
    step = 7
    return tuple(
        ((index + place * step) % 256, float((place * 5 + index) % 13 - 6)) for place in range(num_biased)
    )
