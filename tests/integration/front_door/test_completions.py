"""Tests of ``/v1/completions`` and ``/v1/models``: answers equal those of ``router`` over gRPC."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from pipelines.front_door.endpoints.choices import seed_of_choice
from tests.integration.front_door.conftest import MODEL, events_of, post
from tests.support.tiny_engines import END_OF_TEXT

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

PROMPT = "def area(radius):\n"
CHAT = [{"role": "user", "content": "a"}]


def test_the_served_model_is_listed(api: openai.OpenAI) -> None:
    [model] = api.models.list().data
    assert model.id == api.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as refused:
        api.models.retrieve("another")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_client_may_call_the_only_model_what_it_likes(door: Server, path: str) -> None:
    asks = {"/v1/completions": {"prompt": PROMPT}, "/v1/responses": {"input": "a"}}
    body = {"model": "gpt-4o", "max_tokens": 3, **asks.get(path, {"messages": CHAT})}
    if path == "/v1/responses":
        body["max_output_tokens"] = body.pop("max_tokens")
    answer = post(door, path, body)
    assert (answer.status_code, answer.json().get("model")) == (200, MODEL)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_is_that_of_the_router(api: openai.OpenAI, router: Client, temperature: float) -> None:
    expected = router.generate(
        CompletionRequest(PROMPT, max_tokens=24, temperature=temperature, seed=7, num_log_probs=2), "router"
    )
    options: Any = {"model": MODEL, "max_tokens": 24, "temperature": temperature, "seed": 7, "logprobs": 2}
    extra = {"return_token_ids": True}
    answer = api.completions.create(prompt=PROMPT, **options, extra_body=extra)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.finish_reason)
    assert choice.model_extra is not None and choice.logprobs is not None
    assert tuple(choice.model_extra["token_ids"]) == expected.output_ids
    assert choice.logprobs.token_logprobs == pytest.approx(expected.log_probs, abs=0)
    ids = choice.model_extra["prompt_token_ids"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.output_ids)
    assert answer.usage.prompt_tokens == len(ids)
    for prompt in (ids, [ids]):
        assert api.completions.create(prompt=prompt, **options).choices[0].text == expected.text


def test_a_stream_says_the_same_as_one_response(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 48, "seed": 3}
    asked["extra_body"] = {"ignore_eos": True}  # some processor's rounding draws the end token
    api.completions.create(**asked)  # from now on the prompt is cached
    whole = api.completions.create(**asked)
    *chunks, last = list(api.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert (last.choices, last.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in [*chunks, last]}) == 1
    assert last.usage and last.usage.prompt_tokens_details
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens - 2


@pytest.mark.parametrize(
    ("path", "asked"), [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})]
)
def test_events_have_no_usage_null_or_counts_and_the_prompts_tokens_once(
    door: Server, path: str, asked: dict[str, Any]
) -> None:
    body = {**asked, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True, "n": 2}
    *events, done = events_of(door, path, body)
    assert done == "[DONE]"
    assert all(event["choices"] and "usage" not in event for event in events)
    for index in range(2):
        first, *others = [json.dumps(event) for event in events if event["choices"][0]["index"] == index]
        assert "prompt_token_ids" in first and not any("prompt_token_ids" in each for each in others)
        assert any('"token_ids": [' in each for each in others)
    *events, last, _ = events_of(door, path, {**body, "stream_options": {"include_usage": True}})
    assert [event["usage"] for event in events] == [None] * len(events)
    assert last["usage"]["completion_tokens"] == 48
    *events, _ = events_of(door, path, {**body, "stream_options": {"continuous_usage_stats": True}})
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 48
    whole = post(door, path, {**asked, "stream_options": {"include_usage": True}})
    assert whole.status_code == 200 and whole.json()["usage"]["completion_tokens"]


def test_offsets_count_the_characters_before_a_token(door: Server) -> None:
    """A character of several tokens counts with the last of them."""
    prompt = {"prompt": "a", "max_tokens": 120, "logprobs": 0, "temperature": 1.5, "ignore_eos": True}
    for seed in range(5):
        body = {**prompt, "seed": seed, "skip_special_tokens": False}
        [choice] = post(door, "/v1/completions", body).json()["choices"]
        log_probs, text = choice["logprobs"], choice["text"]
        for token, offset in zip(log_probs["tokens"], log_probs["text_offset"], strict=True):
            assert token.startswith("bytes:") or text[offset:].startswith(token)


def test_a_drawn_seed_is_returned_and_repeats_the_answer(door: Server) -> None:
    def ask(**fields: Any) -> dict[str, Any]:
        answer = post(door, "/v1/completions", {"prompt": PROMPT, "max_tokens": 24, **fields})
        return dict(answer.json()["choices"][0])

    first = ask()
    assert ask(seed=first["seed"])["text"] == first["text"] != ask()["text"]


@pytest.mark.parametrize("streaming", [False, True])
def test_each_prompt_gets_n_answers_with_seeds_of_their_own(
    api: openai.OpenAI, router: Client, streaming: bool
) -> None:
    prompts = [PROMPT, "import "]
    options: Any = {"model": MODEL, "prompt": prompts, "n": 3, "max_tokens": 16, "seed": 5}
    texts = dict.fromkeys(range(6), "")
    answers = api.completions.create(**options, stream=streaming)
    for answer in answers if streaming else [answers]:
        for choice in answer.choices:
            texts[choice.index] += choice.text
    for index, text in texts.items():
        seed = seed_of_choice(5, index % 3)
        asked = CompletionRequest(prompts[index // 3], max_tokens=16, temperature=1.0, seed=seed)
        assert text == router.generate(asked, "router").text
    assert len(set(texts.values())) == 6


def test_speculation_is_told_as_vllm_tells_it(door: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "num_draft_tokens": 4}
    found = post(door, "/v1/completions", body).json()["metrics"]["speculative_decoding"]
    histogram = found["acceptance_histogram"]
    assert sum(histogram) == found["num_spec_steps"]
    assert len(histogram) == found["num_spec_tokens"] + 1
    accepted = sum(count * number for count, number in enumerate(histogram))
    assert accepted == found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]
    assert post(door, "/v1/completions", {**body, "num_draft_tokens": 0}).json()["metrics"] is None


def echoed(api: openai.OpenAI, prompt: Any, **fields: Any) -> Any:
    asked: Any = {"model": MODEL, "prompt": prompt, "seed": 3, "temperature": 0, **fields}
    return api.completions.create(**asked, echo=True)


def test_each_form_of_a_prompt_is_repeated_before_its_answer(api: openai.OpenAI) -> None:
    prompts, extra = [PROMPT, "import os\n"], {"return_token_ids": True}
    plain = api.completions.create(
        model=MODEL, prompt=prompts, max_tokens=6, temperature=0, extra_body=extra
    ).choices
    ids = [choice.model_extra["prompt_token_ids"] for choice in plain if choice.model_extra]
    wanted = [prompt + choice.text for prompt, choice in zip(prompts, plain, strict=True)]
    for each in (prompts, ids):
        assert [choice.text for choice in echoed(api, each, max_tokens=6).choices] == wanted
    assert echoed(api, PROMPT, max_tokens=6, n=2).choices[1].text == wanted[0]
    for prompt in (PROMPT, ids[0]):
        only = echoed(api, prompt, max_tokens=0)
        assert (only.choices[0].text, only.choices[0].finish_reason) == (PROMPT, "length")
        assert only.usage.completion_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_an_echo_are_those_of_the_router_with_and_without_draft(
    api: openai.OpenAI, router: Client, stream: bool
) -> None:
    asked = CompletionRequest(PROMPT, max_tokens=5, seed=3, num_log_probs=2, return_prompt_log_probs=True)
    expected = router.generate(asked, "router")
    assert expected.prompt_log_probs
    for model in ("generate", "generate_target", "ensemble"):
        other = router.generate(asked, model)
        assert other.prompt_log_probs == expected.prompt_log_probs
        assert other.prompt_top_log_probs == expected.prompt_top_log_probs
    answer = echoed(api, PROMPT, max_tokens=5, logprobs=2, stream=stream)
    parts = [event.choices[0] for event in answer] if stream else answer.choices
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    told = {name: [each for part in parts for each in getattr(part.logprobs, name)] for name in names}
    assert "".join(part.text for part in parts) == "".join(told["tokens"])
    assert told["token_logprobs"] == [None, *expected.prompt_log_probs, *expected.log_probs]
    likeliest = [*expected.prompt_top_log_probs, *expected.top_log_probs]
    values = [[value for _, value in each] for each in likeliest]
    assert told["top_logprobs"][0] is None
    assert [list(each.values()) for each in told["top_logprobs"][1:]] == values
    lengths = [len(token) for token in told["tokens"]]
    assert told["text_offset"] == [sum(lengths[:index]) for index in range(len(lengths))]


def test_there_is_always_one_entry_behind_a_prompt_that_is_scored(api: openai.OpenAI) -> None:
    """lm-eval drops the last one, so an end token may not be left out."""
    [choice] = echoed(api, [5], max_tokens=1, logprobs=1, logit_bias={"0": 100}).choices  # its end token
    assert choice.logprobs.token_logprobs[0] is None and len(choice.logprobs.tokens) == 2
    assert choice.logprobs.tokens[-1] == END_OF_TEXT
