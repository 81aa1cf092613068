"""Tests of ``echo`` in ``/v1/completions``: the prompt and the log probabilities of its tokens."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from pipelines.client import Client, CompletionRequest
from tests.integration.front_door.conftest import MODEL
from tests.support.tiny_engines import END_OF_TEXT

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

PROMPT = "def area(radius):\n    return"
OTHER = "import os\n"


def echoed(api: openai.OpenAI, prompt: Any, **fields: Any) -> openai.types.Completion:
    return api.completions.create(
        model=MODEL, prompt=prompt, echo=True, **{"seed": 3, "temperature": 0, **fields}
    )


def test_each_form_of_a_prompt_is_repeated_before_its_answer(api: openai.OpenAI) -> None:
    plain = api.completions.create(
        model=MODEL,
        prompt=[PROMPT, OTHER],
        max_tokens=6,
        temperature=0,
        extra_body={"return_token_ids": True},
    )
    ids = [choice.model_extra["prompt_token_ids"] for choice in plain.choices if choice.model_extra]
    wanted = [prompt + choice.text for prompt, choice in zip((PROMPT, OTHER), plain.choices, strict=True)]
    for prompt in ([PROMPT, OTHER], ids):
        assert [each.text for each in echoed(api, prompt, max_tokens=6).choices] == wanted
    assert echoed(api, PROMPT, max_tokens=6, n=2).choices[1].text == wanted[0]
    for prompt in (PROMPT, ids[0]):
        only = echoed(api, prompt, max_tokens=0)
        assert (only.choices[0].text, only.choices[0].finish_reason) == (PROMPT, "length")
        assert only.usage is not None and only.usage.completion_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_the_router_with_and_without_draft(
    api: openai.OpenAI, router: Client, stream: bool
) -> None:
    asked = CompletionRequest(PROMPT, max_tokens=5, seed=3, num_log_probs=2, return_prompt_log_probs=True)
    found = [router.generate(asked, model) for model in ("router", "generate", "generate_target", "ensemble")]
    expected = found[0]
    assert expected.prompt_log_probs
    for other in found[1:]:
        assert other.prompt_log_probs == expected.prompt_log_probs
        assert other.prompt_top_log_probs == expected.prompt_top_log_probs
    answer: Any = echoed(api, PROMPT, max_tokens=5, logprobs=2, stream=stream)
    parts = [event.choices[0] for event in answer] if stream else answer.choices
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    told = {name: [each for part in parts for each in getattr(part.logprobs, name)] for name in names}
    assert "".join(part.text for part in parts) == "".join(told["tokens"])
    assert told["token_logprobs"] == [None, *expected.prompt_log_probs, *expected.log_probs]
    assert told["top_logprobs"][0] is None
    likeliest = [*expected.prompt_top_log_probs, *expected.top_log_probs]
    assert [list(each.values()) for each in told["top_logprobs"][1:]] == [
        [value for _, value in each] for each in likeliest
    ]
    lengths = [len(token) for token in told["tokens"]]
    assert told["text_offset"] == [sum(lengths[:index]) for index in range(len(lengths))]


def test_a_prompt_of_one_token_has_no_log_probability(api: openai.OpenAI) -> None:
    [choice] = echoed(api, [5], max_tokens=1, logprobs=1).choices
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None and len(choice.logprobs.token_logprobs) == 2


def test_only_an_echo_may_be_without_answer(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        api.completions.create(model=MODEL, prompt=PROMPT, max_tokens=0)


def test_there_is_always_one_entry_behind_a_prompt_that_is_scored(api: openai.OpenAI) -> None:
    """lm-eval drops the last one, so an end token may not be left out."""
    bias = {"0": 100}  # its end token
    [choice] = echoed(api, PROMPT, max_tokens=1, logprobs=1, logit_bias=bias).choices
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert choice.logprobs.tokens[-1] == END_OF_TEXT
