"""Tests of prompts as text and as token ids, and of special tokens, in a real server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from pipelines.client import Client, CompletionRequest
from pipelines.command_line.running_server import engine_directories
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client, post

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

MODELS = ("generate", "generate_target", "ensemble")
END = "<|endoftext|>"
TEXT = "na\u00efve def f(x):\n    return"


@pytest.fixture(scope="module")
def tokenizer(server: Server) -> Tokenizer:
    with grpc_client(server) as client:
        return Tokenizer.from_file(str(engine_directories(client)["target"] / "tokenizer.json"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ids_are_answered_as_their_text(
    client: Client, tokenizer: Tokenizer, model: str, temperature: float
) -> None:
    of_text = CompletionRequest(TEXT, max_tokens=24, temperature=temperature, seed=3, stop_words=("zz",))
    of_ids = replace(of_text, prompt="", prompt_ids=tuple(tokenizer.encode(TEXT).ids))
    answers = [client.stream(request, model).result() for request in (of_text, of_ids)]
    assert answers[0].output_ids == answers[1].output_ids and answers[0].text == answers[1].text
    assert client.generate(of_ids, model).output_ids == answers[0].output_ids


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "neither text_input nor input_ids"),
        ({"text_input": "x", "input_ids": [5]}, "text_input and input_ids, not one prompt"),
        ({"input_ids": [5, 2048]}, "input_ids has ids from 5 to 2048, not 0 to 2047"),
        ({"input_ids": []}, "the prompt is empty"),
        ({"input_ids": [5], "parse_special_tokens": True}, "cannot be sent with input_ids"),
    ],
)
def test_what_is_no_prompt_is_refused(server: Server, model: str, body: dict[str, Any], message: str) -> None:
    reply = post(server, {"max_tokens": 4, **body}, model)
    assert reply.status_code == 400 and message in reply.json()["error"]


@pytest.mark.parametrize("model", MODELS)
def test_special_tokens_are_parsed_and_shown_only_when_asked(
    client: Client, tokenizer: Tokenizer, model: str
) -> None:
    def ids_of(**settings: Any) -> tuple[int, ...]:
        return client.generate(CompletionRequest(max_tokens=8, **settings), model).output_ids

    end_id = tokenizer.token_to_id(END)
    tokenizer.encode_special_tokens = True
    as_text = tuple(tokenizer.encode(f"x{END}y").ids)
    tokenizer.encode_special_tokens = False
    parsed = tuple(tokenizer.encode(f"x{END}y").ids)
    assert end_id in parsed and end_id not in as_text
    assert ids_of(prompt=f"x{END}y") == ids_of(prompt_ids=as_text)
    assert ids_of(prompt=f"x{END}y", parse_special_tokens=True) == ids_of(prompt_ids=parsed)
    only_end = CompletionRequest("x", max_tokens=3, end_id=-1, logit_bias=((end_id, 100.0),))
    for skip in (True, False) if model != "ensemble" else (True,):
        answer = client.stream(replace(only_end, skip_special_tokens=skip), model).result()
        assert answer.output_ids == (end_id,) * 3
        assert answer.text == ("" if skip else END * 3)


def test_the_ensemble_does_not_ignore_what_it_lacks(server: Server) -> None:
    reply = post(server, {"text_input": "x", "max_tokens": 4, "skip_special_tokens": False}, "ensemble")
    assert reply.status_code == 400 and "'skip_special_tokens'" in reply.json()["error"]
