"""Tests of the answers of a real Triton server: text, stop words, prompts as ids, special tokens."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pipelines.client import Client, CompletionRequest
from pipelines.command_line.running_server import engine_directories
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("server")]

MODELS = ("generate", "generate_target", "ensemble")
PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__", "naïve café ☕ ", "\n\n\n")
END = "<|endoftext|>"
TEXT = "na\u00efve def f(x):\n    return"


def test_the_log_of_a_start_has_no_error_on_a_machine_without_a_gpu(server: Server) -> None:
    start, _, rest = server.log.read_text(encoding="utf-8").partition("Started Metrics Service")
    assert "successfully loaded 'speculative'" in start
    assert not re.findall(r"^[EW]\d{4} .*", start, re.MULTILINE) and "evhtp" not in rest


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.long), 1.5])
def test_streamed_chunks_join_to_the_text_that_is_not_streamed(
    client: Client, model: str, temperature: float
) -> None:
    for seed, prompt in enumerate(PROMPTS):
        request = CompletionRequest(prompt, max_tokens=60, temperature=temperature, seed=seed)
        whole = client.generate(request, model)
        with client.stream(request, model) as stream:
            chunks = list(stream)
        assert len(chunks) > 1
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert tuple(token_id for chunk in chunks for token_id in chunk.output_ids) == whole.output_ids


@pytest.mark.parametrize("model", MODELS)
def test_a_stop_word_that_straddles_tokens_ends_the_text_before_it(client: Client, model: str) -> None:
    for prompt in PROMPTS[:3]:
        request = CompletionRequest(prompt, max_tokens=60)
        with client.stream(request, model) as stream:
            pieces = [chunk.text for chunk in stream]
        full = "".join(pieces)
        # Split from one chunk into the next, without replaced bytes; anywhere if the text has too few chunks.
        ends = np.cumsum([len(piece) for piece in pieces])[len(pieces) // 2 :]
        words = (full[end - 1 : end + 1] for end in (*ends, *range(len(full) // 2, len(full))))
        word = next(word for word in words if len(word) == 2 and "\ufffd" not in word)
        stopping = CompletionRequest(prompt, max_tokens=60, stop_words=("never there", word))
        whole = client.generate(stopping, model)
        with client.stream(stopping, model) as stream:
            chunks = list(stream)
        assert whole.text == full[: full.index(word)]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert whole.finish_reason == chunks[-1].finish_reason == "stop"


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
