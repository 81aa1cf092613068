"""Tests of attention and products of our own on a real server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from build.engines import build_engines
from build.recipe import EngineRecipe, load_recipe
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.deploy.server import Server
from pipelines.text.prompt_tokenizer import PromptTokenizer
from tests.conftest import REPOSITORY_ROOT
from tests.integration.conftest import target_alone, tiny_recipe
from tests.support import kserve_http
from tests.support.compiler import needs_compiler
from tests.support.demo_prompts import held_out_prompts
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair

# test_row_rule.py and test_many_threads.py show in this process that rows are equal in bits.
pytestmark = [pytest.mark.triton, pytest.mark.long, needs_compiler]

PATIENT = Timeouts(connect_s=60, read_s=240, total_s=480)
NUM_LONG = 8000  # tokens of a prompt
MAX_LONG = 8192


@pytest.fixture(scope="module", params=["attention", "linear"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Return a ready server whose draft and target both have an operator of our own."""
    keys = {"kv_cache_dtype": "int8", request.param: "draftproof"}
    pair = build_tiny_pair(tmp_path_factory.mktemp("engines"), **keys)
    directory = render_recipe(tiny_recipe("tiny-own"), *pair, tmp_path_factory.mktemp("run")).parent
    with ready_server(directory) as running:
        yield running


def test_requests_beside_each_other_have_the_answers_of_the_target_alone(server: Server) -> None:
    requests = [
        CompletionRequest(
            prompt_ids=tuple((7 * index + seed) % 2000 + 1 for index in range(length)),
            max_tokens=80,
            num_draft_tokens=drafted,
            temperature=temperature,
            seed=seed,
        )
        for seed, (length, drafted, temperature) in enumerate(
            [(3, 4, 0.0), (380, 8, 0.0), (33, 1, 0.8), (31, None, 0.0), (420, 5, 0.8), (100, 0, 0.0)]
        )
    ]

    def answer(request: CompletionRequest) -> tuple[int, ...]:
        with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", PATIENT, server.key) as client:
            return tuple(client.generate(request).output_ids)

    with ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(answer, requests))
    with kserve_http.connect(f"http://127.0.0.1:{server.ports.http}", PATIENT, server.key) as client:
        alone = [tuple(target_alone(client, request).output_ids) for request in requests]
    assert together == alone
    assert max(map(len, alone)) == 80


@pytest.fixture(scope="module")
def long_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """Return a ready server of the demonstration pair with more positions, and the target's engine."""
    folder = tmp_path_factory.mktemp("long")
    recipe = load_recipe("demo")
    shutil.copytree(REPOSITORY_ROOT / "engines" / "demo_pair", folder / "pair")
    engines: dict[str, EngineRecipe] = {}
    for role, engine in (("draft", recipe.draft), ("target", recipe.target)):
        path = folder / "pair" / role / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**config, "max_position_embeddings": MAX_LONG}), encoding="utf-8")
        cache = replace(engine.kv_cache, num_blocks=2 * MAX_LONG // 32 + 2)
        small = replace(engine, checkpoint=str(path.parent), growth=None, kv_cache=cache)
        engines[role] = replace(small, attention="draftproof")
    serving = replace(recipe.serving, max_seq_len=MAX_LONG)
    recipe = replace(recipe, serving=serving, draft=engines["draft"], target=engines["target"])
    built = build_engines(recipe, folder / "engines")
    draft, target = Path(built["draft"]), Path(built["target"])
    run = render_recipe(recipe, draft, target, folder / "run").parent
    with ready_server(run) as running:
        yield running, target


@pytest.mark.parametrize(("num_draft_tokens", "temperature"), [(4, 0.0), (8, 0.0), (None, 0.8)])
def test_long_prompts_of_code_are_continued_as_by_the_target_alone(
    long_pair: tuple[Server, Path], num_draft_tokens: int | None, temperature: float
) -> None:
    server, target = long_pair
    path = target / "tokenizer.json"
    text = "\n\n".join(prompt.text for prompt in held_out_prompts(48))
    ids = PromptTokenizer(path.read_bytes(), path).encode(text)
    request = CompletionRequest(
        prompt_ids=tuple(ids[:NUM_LONG]),
        max_tokens=100,
        num_draft_tokens=num_draft_tokens,
        temperature=temperature,
        seed=7,
        end_id=-1,
    )
    with Client.connect(f"grpc://127.0.0.1:{server.ports.grpc}", PATIENT, server.key) as client:
        found = client.generate(request)
    with kserve_http.connect(f"http://127.0.0.1:{server.ports.http}", PATIENT, server.key) as client:
        alone = target_alone(client, request)
    assert found.output_ids == alone.output_ids
    assert len(found.output_ids) == 100
    if num_draft_tokens is not None:
        assert 0 < found.total_accepted_draft_tokens < found.total_draft_tokens, "some were rejected"
