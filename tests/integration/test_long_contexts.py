"""Tests of prompts of 32,000 tokens on a real server with a tiny network."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator

import pytest

from build.operators.library import COMPILER
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.deploy.server import Server
from tests.integration.conftest import read_gauge, target_alone, tiny_recipe, wait_until
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair

pytestmark = [pytest.mark.triton, pytest.mark.long]

MAX_SEQ_LEN = 32_768
NUM_PROMPT = 32_000
NUM_BLOCKS = 2200  # two such requests
SIZES = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 64}
PATIENT = Timeouts(connect_s=60, read_s=240, total_s=480)


@pytest.fixture(scope="module")
def long_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a ready server with caches in 8 bits, and attention of our own where it can be compiled."""
    pair = build_tiny_pair(
        tmp_path_factory.mktemp("engines"),
        kv_cache_dtype="int8",
        attention="draftproof" if shutil.which(COMPILER) else "openvino",
        max_position_embeddings=MAX_SEQ_LEN,
        intermediate_size=64,
        **SIZES,
    )
    recipe = tiny_recipe("tiny-long")
    serving = dataclasses.replace(recipe.serving, max_seq_len=MAX_SEQ_LEN, max_num_tokens=512)
    caches = {
        role: dataclasses.replace(
            engine, kv_cache=dataclasses.replace(engine.kv_cache, num_blocks=NUM_BLOCKS)
        )
        for role, engine in (("draft", recipe.draft), ("target", recipe.target))
    }
    recipe = dataclasses.replace(recipe, serving=serving, **caches)
    with ready_server(render_recipe(recipe, *pair, tmp_path_factory.mktemp("run")).parent) as running:
        yield running


def connect(server: Server) -> Client:
    return Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", PATIENT, server.key)


def prompt_of(seed: int) -> CompletionRequest:
    ids = tuple((7 * index + seed) % 2000 + 1 for index in range(NUM_PROMPT))
    return CompletionRequest(prompt_ids=ids, max_tokens=24, num_draft_tokens=4)


def test_a_prompt_of_32k_tokens_has_the_answer_of_the_target_alone(long_server: Server) -> None:
    request = prompt_of(seed=1)
    with connect(long_server) as client:
        alone = target_alone(client, request)
        assert client.stream(request).result().output_ids == alone.output_ids
    with connect(long_server) as client:  # its blocks are cached now
        assert client.generate(request).output_ids == alone.output_ids


def test_a_long_text_is_tokenized_and_refused_by_its_length(long_server: Server) -> None:
    with connect(long_server) as client, pytest.raises(Exception, match="too long"):
        client.generate(CompletionRequest("return x\n" * 40_000, max_tokens=4))


def test_a_cancelled_long_prompt_frees_its_blocks_and_others_go_on(long_server: Server) -> None:
    def free() -> float:
        return read_gauge(long_server, "draftproof_kv_blocks_free", engine="target", model="speculative")

    before = free()
    with connect(long_server) as client, connect(long_server) as other:
        stream = client.stream(dataclasses.replace(prompt_of(seed=900), num_draft_tokens=0))
        assert wait_until(lambda: free() < before - 100, timeout_s=120), "it is being read"
        assert other.generate(CompletionRequest("def f(x):", max_tokens=8)).output_ids
        assert free() < before - 100, "the short answer did not wait for the long prompt"
        stream.close()
        assert wait_until(lambda: free() == before, timeout_s=30)
