"""Tests of a front door with a stand-in router: who is answered, and which work others do not wait for."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.front_door.access.key_file import add_key
from pipelines.front_door.application import FrontDoor
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.observing.exchange import Exchange
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.serving import listen
from pipelines.router.preprocessing import PromptLimits
from pipelines.text.vocabulary import Vocabulary
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.request import CompletionRequest

NUM_TOKENS = 50


class Tokenizer:
    vocabulary = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
    can_parse = True

    def encode(self, text: str, **_: bool) -> list[int]:
        return list(text.encode())


class Model:
    """A model with a token for each byte, whose texts nobody may look up on the event loop."""

    name = fingerprint = "demo"
    max_seq_len = 4096
    defaults = CompletionRequest()
    encode: Any = ServedModel.encode

    def __init__(self) -> None:
        self.tokenizer = Tokenizer()
        self.limits = PromptLimits(self.tokenizer.vocabulary, self.max_seq_len)
        self.num_looked_up = 0

    def style(self, *, with_tools: bool) -> MessageStyle:
        return MessageStyle()

    def bytes_of(self, token_id: int) -> bytes:
        assert threading.current_thread() is not threading.main_thread()
        self.num_looked_up += 1
        return bytes([token_id])

    def text_of(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.bytes_of, token_ids)).decode()


class Router:
    """Answers each request with as many log probabilities as were asked for, and keeps the requests."""

    max_requests = 8

    def __init__(self) -> None:
        self.asked: list[CompletionRequest] = []
        self.counts: SpeculationCounts | None = None

    def answer(self, request: CompletionRequest) -> Chunk:
        self.asked.append(request)
        ids = (98,) * request.max_tokens
        tops = (((98, -0.5),),) * len(ids) if request.num_log_probs else ()
        chunk = Chunk("b" * len(ids), ids, (False,) * len(ids), "length", 0.0, 1, self.counts)
        chunk = replace(chunk, log_probs=(-0.5,) * len(ids), top_log_probs=tops)
        if not request.return_prompt_log_probs:
            return chunk
        num_scored = len(request.prompt_ids) - 1
        return replace(chunk, prompt_log_probs=(-1.0,) * num_scored, prompt_top_log_probs=((),) * num_scored)

    async def stream(self, request: CompletionRequest, *, streaming: bool) -> Any:
        yield self.answer(request)


async def unused(request: web.Request) -> web.StreamResponse:
    raise NotImplementedError


class Running:
    """A front door that is served."""

    def __init__(self, settings: FrontDoorSettings, port: int) -> None:
        self.model, self.router, self.port = Model(), Router(), port
        self.ended: asyncio.Queue[Exchange] = asyncio.Queue()
        parts: Any = (self.model, self.router, settings, SimpleNamespace(answer=unused))
        self.door = FrontDoor(*parts, [self.ended.put_nowait], "the server's key")

    async def ask(self, path: str, key: str = "", **body: Any) -> str:
        url, headers = f"http://localhost:{self.port}{path}", {"Authorization": f"Bearer {key}"}
        async with ClientSession() as session, session.post(url, json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.text()


@asynccontextmanager
async def open_door(**settings: Any) -> AsyncIterator[Running]:
    chosen = FrontDoorSettings(**settings)
    listening = chosen.listen(0)
    running = Running(chosen, listening.getsockname()[1])
    async with listen(running.door.application(), chosen, listening):
        yield running


async def test_a_client_that_leaves_with_the_end_of_its_body_is_not_answered() -> None:
    body = json.dumps({"prompt": [1], "max_tokens": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with open_door() as running:
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            client.sendall(head.encode() + body[:-1])
            while not len(running.door.in_progress):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # it waits for the rest of the body
            client.sendall(body[-1:])
        assert (await running.ended.get()).has_left
        assert running.router.asked == []


async def test_a_session_belongs_to_the_key_of_its_client(tmp_path: Path) -> None:
    alice, bob = (add_key(tmp_path / "keys.json", name, None, None) for name in ("alice", "bob"))
    async with open_door(keys=str(tmp_path / "keys.json")) as running:
        for key in (alice, bob, alice):
            await running.ask("/v1/completions", key, prompt=[1], max_tokens=2, session_id="mine")
        first, second, third = (each.session_id for each in running.router.asked)
        assert first == third != second
        assert "mine" not in (first, second)


async def test_the_arm_is_chosen_by_keys_with_this_right_and_by_operators(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = [add_key(file, name, None, None, may_choose_arm=name == "tester") for name in ("alice", "tester")]
    operator = {"draftproof-key": "the server's key"}
    guess = {"draftproof-key": "a guess"}
    for settings, headers, status in (
        ({}, {}, 403),
        ({}, guess, 403),
        ({}, operator, 200),
        ({"keys": str(file)}, {"X-Api-Key": keys[0]}, 403),
        ({"keys": str(file)}, {"X-Api-Key": keys[0], **guess}, 403),
        ({"keys": str(file)}, {"X-Api-Key": keys[0], **operator}, 200),
        ({"keys": str(file)}, {"X-Api-Key": keys[1]}, 200),
    ):
        async with open_door(**settings) as running, ClientSession(headers=headers) as session:
            url = f"http://localhost:{running.port}/v1/completions"
            for arm, expected in (("candidate", status), ("", 200), (None, 200)):
                body = {"prompt": [1], "max_tokens": 2, "arm": arm}
                async with session.post(url, json=body) as reply:
                    error = (await reply.json()).get("error", {"param": "arm"})
                assert (reply.status, error["param"]) == (expected, "arm"), (settings, headers, arm)
            assert [each.arm for each in running.router.asked] == ["candidate"] * (status == 200) + ["", ""]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_written_on_another_thread(stream: bool) -> None:
    async with open_door() as running:
        echoed = {"prompt": [97] * NUM_TOKENS, "echo": True, "max_tokens": 1}
        text = await running.ask("/v1/completions", **echoed, logprobs=1, stream=stream)
        [choice] = json.loads(text.removeprefix("data: ").split("\n\n")[0])["choices"]
        assert len(choice["logprobs"]["tokens"]) == NUM_TOKENS + 1
        assert choice["text"] == "a" * NUM_TOKENS + "b"
        text = await running.ask("/v1/completions", prompt="a", logprobs=1, max_tokens=NUM_TOKENS, n=4)
        assert [len(each["logprobs"]["tokens"]) for each in json.loads(text)["choices"]] == [NUM_TOKENS] * 4
        text = await running.ask("/tokenize", prompt="a" * NUM_TOKENS, return_token_strs=True)
        assert json.loads(text)["token_strs"] == ["a"] * NUM_TOKENS


async def test_a_prompt_of_tokens_is_not_turned_into_text_unless_it_is_echoed() -> None:
    async with open_door() as running:
        await running.ask("/v1/completions", prompt=[97] * NUM_TOKENS, max_tokens=1)
        assert running.model.num_looked_up == 0


async def test_warnings_stand_in_the_response_or_in_the_first_event() -> None:
    async with open_door() as running:
        form = {"type": "json_object", "schema": {"uniqueItems": True}}
        asked = {"prompt": [97], "max_tokens": 3, "response_format": form}
        assert "uniqueItems" in json.loads(await running.ask("/v1/completions", **asked))["warnings"][0]
        text = await running.ask("/v1/completions", **asked, n=2, stream=True)
        assert ["warnings" in event for event in text.split("\n\n")] == [True, False, False, False]


async def test_usage_counts_the_tokens_of_predictions_over_all_answers() -> None:
    async with open_door() as running:
        counts = {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 1}
        running.router.counts = SpeculationCounts(2, 6, 5, (1,), **counts)
        prediction = {"type": "content", "content": "bb"}
        told = await running.ask("/v1/completions", prompt=[1], max_tokens=2, n=2, prediction=prediction)
        details = json.loads(told)["usage"]["completion_tokens_details"]
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (10, 2)
        assert [each.prediction for each in running.router.asked] == ["bb", "bb"]
