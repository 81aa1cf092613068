"""Tests of work that takes long for large answers: other requests do not wait for it."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from pipelines.client.generation import Chunk
from pipelines.front_door.access.clients import Client, set_client
from pipelines.front_door.access.key_file import ApiKey
from pipelines.front_door.application import POSTS
from pipelines.front_door.observing.exchange import watching
from pipelines.wire.request import CompletionRequest

NUM_TOKENS = 50


class Model:
    """A model with a token for each byte, whose texts nobody may look up on the event loop."""

    name = fingerprint = "demo"
    max_seq_len = 4096
    defaults = CompletionRequest()

    def __init__(self) -> None:
        self.tokenizer: Any = self
        self.vocabulary: Any = self
        self.can_parse, self.size = True, 256
        self.num_looked_up = 0

    def encode(self, text: str, **_: bool) -> list[int]:
        return list(text.encode())

    def check_size(self, text: str, name: str) -> None: ...

    def check_length(self, num_tokens: int, name: str) -> None: ...

    def bytes_of(self, token_id: int) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        self.num_looked_up += 1
        return bytes([token_id])

    def text_of(self, token_ids: list[int]) -> str:
        return b"".join(map(self.bytes_of, token_ids)).decode()


class Router:
    """Answers each request with as many log probabilities as were asked for."""

    max_requests = 8

    def answer(self, request: CompletionRequest) -> Chunk:
        ids = (98,) * request.max_tokens
        tops = (((98, -0.5),),) * len(ids) if request.num_log_probs else ()
        chunk = Chunk("b" * len(ids), ids, (False,) * len(ids), "length", 0.0, 1, None)
        chunk = replace(chunk, log_probs=(-0.5,) * len(ids), top_log_probs=tops)
        if not request.return_prompt_log_probs:
            return chunk
        num_scored = len(request.prompt_ids) - 1
        return replace(chunk, prompt_log_probs=(-1.0,) * num_scored, prompt_top_log_probs=((),) * num_scored)

    async def generate(self, request: CompletionRequest) -> Chunk:
        return self.answer(request)

    async def stream(self, request: CompletionRequest) -> Any:
        yield self.answer(request)


def ask(path: str, **fields: Any) -> tuple[str, Model]:
    """Return the response of an endpoint, and the model that it used."""
    model = Model()
    [(kind, endpoint)] = [(kind, endpoint) for each, _, kind, endpoint in POSTS if each == path]

    async def handle(request: web.Request) -> web.StreamResponse:
        set_client(request, Client(ApiKey("", "")))
        return await endpoint(request, kind(**fields), model, Router())  # type: ignore[arg-type]

    async def run() -> str:
        server = web.Application(middlewares=[watching()])
        server.router.add_post("/", handle)
        async with TestClient(TestServer(server)) as client:
            reply = await client.post("/", json={})
            assert reply.status == 200, await reply.text()
            return await reply.text()

    return asyncio.run(run()), model


@pytest.mark.parametrize("streaming", [False, True])
def test_log_probabilities_of_a_prompt_are_written_on_another_thread(streaming: bool) -> None:
    prompt = [97] * NUM_TOKENS
    text, _ = ask("/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=1, stream=streaming)
    document = json.loads(text.removeprefix("data: ").split("\n\n")[0])
    assert len(document["choices"][0]["logprobs"]["tokens"]) == NUM_TOKENS + 1
    assert document["choices"][0]["text"] == "a" * NUM_TOKENS + "b"


def test_log_probabilities_of_an_answer_are_written_on_another_thread() -> None:
    text, _ = ask("/v1/completions", prompt="a", logprobs=1, max_tokens=NUM_TOKENS, n=4)
    assert [len(each["logprobs"]["tokens"]) for each in json.loads(text)["choices"]] == [NUM_TOKENS] * 4


def test_a_prompt_of_tokens_is_not_turned_into_text_unless_it_is_echoed() -> None:
    _, model = ask("/v1/completions", prompt=[97] * NUM_TOKENS, max_tokens=1)
    assert model.num_looked_up == 0


def test_tokens_are_written_on_another_thread() -> None:
    text, _ = ask("/tokenize", prompt="a" * NUM_TOKENS, return_token_strs=True)
    assert json.loads(text)["token_strs"] == ["a"] * NUM_TOKENS
