"""Tests of ``/v1/completions`` and ``/v1/models``: answers equal those of ``router`` over gRPC."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest

from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from pipelines.front_door.requests.sampling import seed_of_choice
from tests.integration.front_door.conftest import MODEL, events_of, openai_client, post, url_of

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

PROMPT = "def area(radius):\n"


def test_the_served_model_is_listed(api: openai.OpenAI) -> None:
    [model] = api.models.list().data
    assert model.id == MODEL
    assert api.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as refused:
        api.models.retrieve("another")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_is_that_of_the_router(api: openai.OpenAI, router: Client, temperature: float) -> None:
    expected = router.generate(
        CompletionRequest(PROMPT, max_tokens=24, temperature=temperature, seed=7, num_log_probs=2), "router"
    )
    answer = api.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=24,
        temperature=temperature,
        seed=7,
        logprobs=2,
        extra_body={"return_token_ids": True},
    )
    [choice] = answer.choices
    assert choice.text == expected.text
    assert choice.finish_reason == expected.finish_reason
    assert choice.model_extra is not None and choice.logprobs is not None
    assert tuple(choice.model_extra["token_ids"]) == expected.output_ids
    assert choice.logprobs.token_logprobs == pytest.approx(expected.log_probs, abs=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(expected.output_ids)
    assert answer.usage.prompt_tokens == len(choice.model_extra["prompt_token_ids"])


def test_stop_token_ids_end_an_answer(api: openai.OpenAI, router: Client) -> None:
    whole = router.generate(CompletionRequest(PROMPT, max_tokens=24), "router")
    token_id = whole.output_ids[5]
    answer = api.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=24,
        temperature=0,
        extra_body={"return_token_ids": True, "stop_token_ids": [token_id]},
    )
    [choice] = answer.choices
    assert choice.finish_reason == "stop" and choice.model_extra is not None
    assert tuple(choice.model_extra["token_ids"]) == whole.output_ids[: whole.output_ids.index(token_id)]


def test_a_stream_says_the_same_as_one_response(api: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 48, "seed": 3}
    asked["extra_body"] = {"ignore_eos": True}  # some processor's rounding draws the end token
    whole = api.completions.create(**asked)
    stream = api.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert (last.choices, last.usage) == ([], whole.usage)
    assert len({chunk.id for chunk in [*chunks, last]}) == 1


def test_a_stream_ends_with_done_and_has_no_usage_unless_asked(door: Server) -> None:
    *events, last = events_of(door, "/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    assert last == "[DONE]"
    assert all(event["choices"] and "usage" not in event for event in events)


def test_usage_is_null_before_the_last_event_or_counts_along(door: Server) -> None:
    common = {"max_tokens": 24, "ignore_eos": True}
    for path, asked in (
        ("/v1/completions", {"prompt": PROMPT, **common}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], **common}),
    ):
        *events, last, _ = events_of(door, path, {**asked, "stream_options": {"include_usage": True}})
        assert [event["usage"] for event in events] == [None] * len(events)
        assert last["usage"]["completion_tokens"] == 24
        *events, _ = events_of(door, path, {**asked, "stream_options": {"continuous_usage_stats": True}})
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == sorted(counts) and counts[-1] == 24


def test_the_tokens_of_the_prompt_are_told_once(door: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 24, "return_token_ids": True, "n": 2}
    *events, _ = events_of(door, "/v1/completions", body)
    for index in range(2):
        first, *others = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert first["prompt_token_ids"] and not any("prompt_token_ids" in each for each in others)
        assert len(others) > 0 and all(each["token_ids"] for each in others)
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 24, "return_token_ids": True}
    first, *others, _ = events_of(door, "/v1/chat/completions", chat)
    assert first["prompt_token_ids"] and not any("prompt_token_ids" in json.dumps(each) for each in others)
    assert post(door, "/v1/chat/completions", chat).json()["prompt_token_ids"] == first["prompt_token_ids"]


def test_offsets_count_the_characters_before_a_token(door: Server) -> None:
    """A character of several tokens counts with the last of them."""
    prompt = {"prompt": "a", "max_tokens": 120, "logprobs": 0, "temperature": 1.5, "ignore_eos": True}
    for seed in range(5):
        body = {**prompt, "seed": seed, "skip_special_tokens": False}
        [choice] = post(door, "/v1/completions", body).json()["choices"]
        log_probs, text = choice["logprobs"], choice["text"]
        for token, offset in zip(log_probs["tokens"], log_probs["text_offset"], strict=True):
            assert token.startswith("bytes:") or text[offset:].startswith(token)


def test_a_drawn_seed_is_returned_and_repeats_the_answer(api: openai.OpenAI) -> None:
    first = api.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24)
    assert first.choices[0].model_extra is not None
    seed = first.choices[0].model_extra["seed"]
    again = api.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, seed=seed)
    other = api.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24)
    assert again.choices[0].text == first.choices[0].text != other.choices[0].text


@pytest.mark.parametrize("streaming", [False, True])
def test_each_prompt_gets_n_answers_with_seeds_of_their_own(
    api: openai.OpenAI, router: Client, streaming: bool
) -> None:
    prompts = [PROMPT, "import "]
    options = {"model": MODEL, "prompt": prompts, "n": 3, "max_tokens": 16, "seed": 5}
    texts = dict.fromkeys(range(6), "")
    if streaming:
        for chunk in api.completions.create(**options, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
    else:
        for choice in api.completions.create(**options).choices:
            texts[choice.index] = choice.text
    for index, text in texts.items():
        seed = seed_of_choice(5, index % 3)
        asked = CompletionRequest(prompts[index // 3], max_tokens=16, temperature=1.0, seed=seed)
        assert text == router.generate(asked, "router").text
    assert len(set(texts.values())) == 6


def test_token_ids_are_prompts_too(api: openai.OpenAI) -> None:
    options = {"model": MODEL, "max_tokens": 8, "seed": 1}
    text = api.completions.create(prompt=PROMPT, **options, extra_body={"return_token_ids": True})
    assert text.choices[0].model_extra is not None
    ids = text.choices[0].model_extra["prompt_token_ids"]
    for prompt in (ids, [ids]):
        assert api.completions.create(prompt=prompt, **options).choices[0].text == text.choices[0].text


def test_the_asynchronous_client_streams_concurrently(door: Server) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=24, seed=seed, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url_of(door)}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client, seed) for seed in range(8)))

    alone = [
        openai_client(door).completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, seed=seed)
        for seed in range(8)
    ]
    assert asyncio.run(ask_all()) == [answer.choices[0].text for answer in alone]


def test_speculation_is_told_as_vllm_tells_it(door: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "num_draft_tokens": 4}
    found = post(door, "/v1/completions", body).json()["metrics"]["speculative_decoding"]
    histogram = found["acceptance_histogram"]
    assert sum(histogram) == found["num_spec_steps"]
    assert len(histogram) == found["num_spec_tokens"] + 1
    accepted = sum(count * number for count, number in enumerate(histogram))
    assert accepted == found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]
    assert post(door, "/v1/completions", {**body, "num_draft_tokens": 0}).json()["metrics"] is None


UNKNOWN_TYPE = {"name": "a", "strict": True, "schema": {"type": "strange"}}


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": {}}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": ["a", 1]}, 400, "prompt"),
        ({"prompt": [99999]}, 400, None),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": "a " * 600}, 400, "prompt"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"max_tokens": 2**40}, 400, "max_tokens"),
        ({"max_tokens": 0}, 400, None),
        ({"temperature": -1}, 400, "temperature"),
        ({"temprature": 1}, 400, "temprature"),
        ({"stop": 3}, 400, "stop"),
        ({"logit_bias": {"a": 1}}, 400, "logit_bias"),
        ({"n": 0}, 400, "n"),
        ({"n": 1000}, 400, "n"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"seed": -1}, 400, "seed"),
        ({"model": "another"}, 404, "model"),
        ({"arm": "nobody"}, 400, None),
        ({"n": 13}, 400, None),
        ({"structured_outputs": {"regex": "("}}, 400, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": UNKNOWN_TYPE}}, 400, "response_format"),
        ({"x" * 10000: 1}, 400, "x" * 300),
        ({"model": "y" * 10000}, 404, "model"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_wrong_field_is_refused_by_name_and_with_its_status(
    door: Server, changes: dict[str, object], status: int, param: str | None, streaming: bool
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 4, **changes, "stream": streaming}
    response = post(door, "/v1/completions", body)
    error = response.json()["error"]
    assert response.status_code == status, error
    assert error["type"] == "invalid_request_error"
    assert all(error[part] for part in ("message", "what", "values", "limit", "remedy")), error
    if param is not None:
        assert error["param"] == param


def test_options_of_a_stream_need_a_stream(door: Server) -> None:
    for path, asked in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": []})):
        refused = post(door, path, {**asked, "stream_options": {"include_usage": True}})
        assert refused.status_code == 400
    assert "stream_options" in post(door, "/v1/completions", {"prompt": "a", "stream_options": {}}).text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"a"', b'{"prompt": "\\ud800"}', b"\xff\xfe", b"[" * 10000]
)
def test_what_is_no_json_object_is_refused(door: Server, body: bytes) -> None:
    response = post(door, "/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_other_paths_methods_and_sizes_have_their_status(door: Server) -> None:
    assert post(door, "/v1/nothing", {}).status_code == 404
    wrong = post(door, "/v1/models", {})
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET,HEAD")
    assert "GET" in wrong.json()["error"]["limit"]
    large = post(door, "/v1/completions", b" " * (3 << 20))
    assert (large.status_code, large.json()["error"]["what"]) == (413, "the body is too large")
