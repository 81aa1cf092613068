"""Sampling parameters of the passes: greedy or seeded, with default parameters or with all others.

The sets of parameters rotate over the prompts, so each pass of a kind contains all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pipelines.client import CompletionRequest
from pipelines.command_line.prompts import Prompt

GREEDY, GREEDY_PARAMETERS = "greedy", "greedy, parameters"
SEEDED, SEEDED_PARAMETERS = "seeded", "seeded, parameters"
KINDS = (GREEDY, GREEDY_PARAMETERS, SEEDED, SEEDED_PARAMETERS)

TEMPERATURE = 0.8
MAX_LOG_PROBS = 20
_NUM_PROMPT_IDS = 48

_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "function_name": {"type": "string", "minLength": 4, "maxLength": 24},
            "parameter_names": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 8},
            "number_of_lines": {"type": "integer", "minimum": 1, "maximum": 9999},
        },
        "required": ["function_name", "parameter_names", "number_of_lines"],
        "additionalProperties": False,
    }
)
# Answers that must or may call one of two tools, as the front door's grammars for Qwen write them.
_CALL = rf"""
call: HEAD_0 %json {_SCHEMA} END | HEAD_1 %json {{"type": "object", "additionalProperties": false}} END
HEAD_0: /\{{"name": "describe_function", "arguments": /
HEAD_1: /\{{"name": "run_tests", "arguments": /
END: /\}}\n?<\/tool_call>/
"""
_REQUIRED_CALL = f'start: "<tool_call>" call{_CALL}'
_POSSIBLE_CALL = f"""start: TEXT | BEFORE call
TEXT: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/
BEFORE: /(?s:.*)<tool_call>/ & ~/(?s:.*)<tool_call>(?s:.+)/{_CALL}"""

# "min_tokens": True stands for a share of max_tokens, "logit_bias": n for n tokens, and "prompt_ids": True
# for token ids instead of the text; see request_of.
# Bad words and stop words are pieces of code, so that answers to prompts of code contain them.
_FOR_ALL: tuple[Mapping[str, Any], ...] = (
    {"repetition_penalty": 1.2, "num_log_probs": 0},
    {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "num_log_probs": 2,
        "return_prompt_log_probs": True,
    },
    {
        "repetition_penalty": 0.9,
        "presence_penalty": -0.5,
        "add_special_tokens": False,
        "parse_special_tokens": True,
    },
    {"bad_words": ("self", "\n\n", "return")},
    {"bad_words": ("e",), "frequency_penalty": 0.3, "num_log_probs": 3},
    {"stop_words": ("\n\n\n", "class "), "min_tokens": True, "num_log_probs": 1},
    {"stop_words": (")",), "stop_token_ids": (97, 110), "min_tokens": True, "bad_words": ("(",)},
    {"min_tokens": True, "logit_bias": 3, "num_log_probs": MAX_LOG_PROBS},
    {"logit_bias": 40, "prompt_ids": True},
    {"guide": ("json_schema", _SCHEMA), "num_log_probs": 2},
    {"guide": ("regex", "[a-z_ ]{30,}"), "bad_words": ("e",), "presence_penalty": 0.5},
    {"guide": ("lark_grammar", _REQUIRED_CALL), "num_log_probs": 1},
    {"guide": ("lark_grammar", _POSSIBLE_CALL), "repetition_penalty": 1.1},
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
"""Kind -> sets of parameters that rotate over its prompts."""


def is_greedy(kind: str) -> bool:
    """Return whether a kind is greedy, so that it needs no seed."""
    return kind in (GREEDY, GREEDY_PARAMETERS)


def request_of(kind: str, index: int, prompt: Prompt, max_tokens: int) -> CompletionRequest:
    """Build the request for one prompt.

    Args:
        kind: One of ``KINDS``.
        index: Index of the prompt, which determines seed, parameters and biased tokens. A kind with
            parameters uses every second prompt.
        prompt: The prompt.
        max_tokens: Most output tokens.
    """
    sets = PARAMETERS[kind]
    values = dict(sets[index // 2 % len(sets)])
    if values.pop("min_tokens", False):
        values["min_tokens"] = max_tokens // 3
    if num_biased := values.pop("logit_bias", 0):
        values["logit_bias"] = _bias(index, num_biased)
    if values.pop("prompt_ids", False):
        # Of the first 256 tokens, which every vocabulary has, one for each byte.
        ids = tuple(prompt.text.encode()[:_NUM_PROMPT_IDS])
        request = CompletionRequest(prompt_ids=ids, max_tokens=max_tokens)
    else:
        request = CompletionRequest(prompt.text, max_tokens=max_tokens, **prompt.switches)
    if not is_greedy(kind):
        request = replace(request, temperature=TEMPERATURE, seed=seed_of(index))
    return replace(request, **values)


def seed_of(index: int) -> int:
    """Return a prompt's seed: alternately a small one and ones near the ends of 32, 53 and 64 bits."""
    ends = (0, 2**32 - 1000, 2**53 - 1000, 2**64 - 1000)
    return ends[index // 2 % len(ends)] + index % 1000


def _bias(index: int, num_biased: int) -> tuple[tuple[int, float], ...]:
    """Bias some of the first 256 tokens, which every vocabulary has, by -6 to 6."""
    step = 7
    return tuple(
        ((index + place * step) % 256, float((place * 5 + index) % 13 - 6)) for place in range(num_biased)
    )
