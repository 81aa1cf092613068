"""Tests that every request parameter takes effect on a real server, in all text-level models."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.deploy.server import Server
from tests.integration.conftest import (
    grpc_client,
    http_client,
    infer_inputs,
    post,
    stream_infer,
    text_tensors,
)
from tests.support.stand_in_server import INPUT_TYPES

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

MODELS = ("generate", "generate_target", "ensemble")
NO_END = -1
GREEDY = CompletionRequest("def main(", max_tokens=40, end_id=NO_END, num_log_probs=20)
SAMPLED = dataclasses.replace(GREEDY, temperature=1.0, seed=5)
ROUNDING = 1e-4  # rounding of the float32 on the wire; the server itself compares unrounded numbers

Ask = Callable[..., Generation]
"""(request, changes) -> answer."""


# The other ways are shown to give the same answers to all parameters together.
EACH_PARAMETER = ("generate", "grpc")
WAYS = [
    pytest.param(way, id="-".join(way), marks=() if way == EACH_PARAMETER else pytest.mark.long)
    for way in itertools.product(MODELS, ("grpc", "http"))
]


@pytest.fixture(params=WAYS)
def ask(request: pytest.FixtureRequest, server: Server) -> Iterator[Ask]:
    """Ask one model over one transport, streamed where possible, otherwise whole."""
    model, transport = request.param
    streams = transport == "grpc"
    with {"grpc": grpc_client, "http": http_client}[transport](server) as client:

        def send(asked: CompletionRequest, **changes: Any) -> Generation:
            changed = dataclasses.replace(asked, **changes)
            return client.stream(changed, model).result() if streams else client.generate(changed, model)

        yield send


# Each parameter with an extreme value, and what it makes of an answer; tests/unit has its effects in detail.
LIKE_GREEDY = ({"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0})
OTHER_THAN_GREEDY = (
    *({"presence_penalty": 1.5}, {"presence_penalty": -1.5}),
    *({"frequency_penalty": 1.0}, {"frequency_penalty": -0.25}),
)


def test_each_sampling_parameter_arrives(ask: Ask) -> None:
    greedy, sampled = ask(GREEDY), ask(SAMPLED)
    assert sampled.output_ids != greedy.output_ids and len(set(greedy.output_ids)) < 40
    for change in LIKE_GREEDY:
        assert ask(SAMPLED, **change).output_ids == greedy.output_ids, change
    for change in OTHER_THAN_GREEDY:
        assert ask(GREEDY, **change).output_ids != greedy.output_ids, change
    assert len(set(ask(GREEDY, repetition_penalty=1e6).output_ids)) == 40
    assert set(ask(GREEDY, logit_bias=((77, 100.0),)).output_ids) == {77}
    forbidding = tuple((token_id, -100.0) for token_id in set(greedy.output_ids))
    assert not set(greedy.output_ids) & set(ask(GREEDY, logit_bias=forbidding).output_ids)


def test_log_probs_are_sorted_and_alternatives_come_only_if_asked_for(ask: Ask) -> None:
    full, some = ask(GREEDY), ask(GREEDY, num_log_probs=3)
    for token_id, log_prob, pairs in zip(full.output_ids, full.log_probs, full.top_log_probs, strict=True):
        assert len(pairs) == 20 and pairs[0] == (token_id, log_prob)
        assert [*pairs] == sorted(pairs, key=lambda pair: -pair[1])
        assert sum(math.exp(each) for _, each in pairs) < 1 + ROUNDING
    assert some.top_log_probs == tuple(pairs[:3] for pairs in full.top_log_probs)
    bare, none = ask(GREEDY, num_log_probs=0), ask(GREEDY, num_log_probs=None)
    assert (bare.log_probs, bare.top_log_probs) == (full.log_probs, ())
    assert (none.log_probs, none.top_log_probs, none.output_ids) == ((), (), full.output_ids)


def test_the_seed_decides_and_one_that_was_drawn_can_be_used_again(ask: Ask) -> None:
    first, second = ask(SAMPLED, seed=None), ask(SAMPLED, seed=None)
    assert first.seed is not None and first.seed != second.seed
    assert first.output_ids != second.output_ids
    again = ask(SAMPLED, seed=first.seed)
    assert (again.output_ids, again.log_probs, again.seed) == (first.output_ids, first.log_probs, first.seed)


def test_what_ends_an_answer_and_what_it_may_not_say(ask: Ask) -> None:
    plain = ask(GREEDY)
    end_id, word = plain.output_ids[5], plain.text[8:10]
    first = plain.output_ids.index(end_id)
    early, late = ask(GREEDY, end_id=end_id), ask(GREEDY, end_id=end_id, min_tokens=20)
    assert (early.output_ids, early.finish_reason) == (plain.output_ids[:first], "stop")
    assert len(late.output_ids) >= 20 and end_id not in late.output_ids
    assert ask(GREEDY, stop_token_ids=(end_id,)).output_ids == plain.output_ids[:first]
    assert ask(GREEDY, stop_words=(word,)).text == plain.text[: plain.text.index(word)]
    stopped = ask(GREEDY, stop_words=(word,), min_tokens=15)
    assert len(stopped.output_ids) > 15 and word in stopped.text
    for request in (GREEDY, SAMPLED):
        assert word not in ask(request, bad_words=(word,)).text


def test_all_parameters_together_give_the_same_from_all_models_streamed_or_not(server: Server) -> None:
    everything = dataclasses.replace(
        SAMPLED,
        max_tokens=80,
        temperature=0.9,
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        min_tokens=10,
        stop_words=("never there",),
        bad_words=("t", "the"),
        logit_bias=((77, 3.0), (12, -2.0)),
        num_log_probs=4,
    )
    for request in (everything, dataclasses.replace(everything, temperature=0.0)):
        answers = []
        for client in (grpc_client(server), http_client(server)):
            with client:
                answers += [client.generate(request, model) for model in MODELS]
                answers += [client.stream(request, model).result() for model in MODELS[:2]]
        first = answers[0]
        assert len(first.output_ids) == 80
        for answer in answers[1:]:  # floats are compared bit by bit, too
            assert answer.output_ids == first.output_ids
            assert (answer.text, answer.seed) == (first.text, first.seed)
            assert answer.log_probs == first.log_probs
            assert answer.top_log_probs == first.top_log_probs
        assert any(answer.total_accepted_draft_tokens for answer in answers)


@pytest.mark.parametrize("model", ["generate", pytest.param("ensemble", marks=pytest.mark.long)])
def test_the_ratio_rules_answers_can_be_repeated_and_are_not_the_targets(client: Client, model: str) -> None:
    differ, accepted = 0, 0
    for seed in range(4):
        request = dataclasses.replace(SAMPLED, seed=seed)
        coupled = client.generate(request, model)
        by_ratio = client.generate(dataclasses.replace(request, use_draft_logits=True), model)
        again = client.generate(dataclasses.replace(request, use_draft_logits=True), model)
        assert by_ratio.output_ids == again.output_ids
        assert by_ratio.log_probs == again.log_probs
        assert len(by_ratio.log_probs) == len(by_ratio.output_ids) == 40
        differ += by_ratio.output_ids != coupled.output_ids
        accepted += by_ratio.total_accepted_draft_tokens
    assert differ
    assert accepted
    greedy = client.generate(dataclasses.replace(GREEDY, use_draft_logits=True), model)
    assert greedy.output_ids == client.generate(GREEDY, "generate_target").output_ids


def raw_answers(server: Server, model: str, **values: Any) -> Iterator[dict[str, Any]]:
    """Return a model's last response over each of Triton's endpoints, with outputs flattened to lists."""
    values = {"text_input": "def main(", "max_tokens": 12, **values}
    streamed = stream_infer(server, text_tensors(**values, stream=True), model)
    assert len(streamed) > 1
    yield {name: array.reshape(-1).tolist() for name, array in streamed[-1].items()}
    url = f"http://127.0.0.1:{server.ports.http}/v2/models/{model}"
    reply = httpx.post(
        f"{url}/generate_stream", json={**values, "stream": True}, timeout=120, trust_env=False
    )
    last = [line for line in reply.text.splitlines() if line.startswith("data:")][-1]
    for document in (json.loads(last.removeprefix("data:")), post(server, values, model).json()):
        yield {name: value if isinstance(value, list) else [value] for name, value in document.items()}
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.ports.grpc}") as kserve:
        result = kserve.infer(model, infer_inputs(text_tensors(**values)))
    outputs = [output.name for output in result.get_response().outputs]
    yield {name: result.as_numpy(name).reshape(-1).tolist() for name in outputs}
    body = [
        {"name": name, "shape": [1, 1], "datatype": INPUT_TYPES[name], "data": [value]}
        for name, value in values.items()
    ]
    reply = httpx.post(f"{url}/infer", json={"inputs": body}, timeout=120, trust_env=False)
    yield {output["name"]: output["data"] for output in reply.json()["outputs"]}


@pytest.mark.parametrize("model", MODELS[:2])
def test_empty_outputs_and_large_seeds_come_through_every_endpoint(server: Server, model: str) -> None:
    answers = list(raw_answers(server, model, seed=2**64 - 1))
    assert len(answers) == 5
    for outputs in answers:
        assert outputs["output_seed"] == [2**64 - 1]
        assert outputs["cum_log_probs"] == [0.0]
        for name in ("output_log_probs", "top_log_prob_ids", "top_log_probs"):
            assert outputs[name] == [], name


@pytest.mark.parametrize("model", MODELS[:2])
def test_the_sum_of_log_probs_is_that_of_the_whole_answer(server: Server, model: str) -> None:
    asked = {"text_input": "def main(", "max_tokens": 12, "temperature": 1.0, "seed": 3}
    whole = post(server, {**asked, "return_log_probs": True}, model).json()
    total = 0.0
    for log_prob in whole["output_log_probs"]:
        total += log_prob
    for outputs in raw_answers(server, model, temperature=1.0, seed=3, return_log_probs=True):
        assert np.float32(outputs["cum_log_probs"][0]) == np.float32(total)
