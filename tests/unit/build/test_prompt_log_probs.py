"""Tests of log probabilities of prompts on real engines: beside logits, and bit for bit in any step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.engines import compile_network
from build.networks.source import open_network
from pipelines.executor import request as request_module
from pipelines.executor.engine import Engine
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.log_probs import LogProbs
from pipelines.speculation.request import GenerationRequest
from pipelines.text.vocabulary import Vocabulary
from tests.golden.families import save_family
from tests.support.network_engines import prompt_logits

TOLERANCE = 1e-4
"""In nats."""

NUM_TOKENS, NUM_BLOCKS = 150, 40


def executor_of(engine: Engine) -> Executor:
    vocabulary = Vocabulary(tuple(b"<%d>" % each for each in range(engine.config.vocab_size)))
    limits = ExecutorLimits(8, 128, 256, 16, NUM_BLOCKS)
    return Executor(engine, vocabulary, limits)


def asked(ids: list[int], max_tokens: int = 4) -> GenerationRequest:
    prompt = np.array(ids, np.int32)
    return GenerationRequest("test", prompt, max_tokens, num_log_probs=2, prompt_log_probs=True)


def answers(engine: Engine, *requests: GenerationRequest) -> list[LogProbs]:
    executor = executor_of(engine)
    loop = StepLoop([executor])
    loop.start()

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(executor.complete, requests))

    try:
        return [output.prompt_log_probs for output in loop.spawn(all_at_once()).result(timeout=120)]
    finally:
        loop.stop()


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_they_are_those_of_the_logits_and_have_the_same_bits_in_any_step(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_family("qwen3", tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    engine = compile_network(tmp_path / "engine", network, quantization)
    rng = np.random.default_rng(3)
    ids = rng.integers(1, engine.config.vocab_size, NUM_TOKENS).tolist()
    (alone,) = answers(engine, asked(ids))
    if quantization == "none":  # whose logits are those of transformers
        logits = prompt_logits(engine, np.array(ids, np.int32), 100)[:-1].astype(np.float64)
        wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        found = alone.token_log_probs
        assert np.abs(found - wanted[np.arange(NUM_TOKENS - 1), ids[1:]]).max() < TOLERANCE
        assert np.abs(alone.top_log_probs - -np.sort(-wanted, axis=1)[:, :2]).max() < TOLERANCE
    for most_tokens in (4, 7, 33):
        monkeypatch.setattr(request_module, "_MOST_LOGITS", most_tokens * engine.config.vocab_size)
        mates = [
            asked(rng.integers(1, engine.config.vocab_size, 20 + 9 * index).tolist()) for index in (1, 2)
        ]
        first, *_, last = answers(engine, asked(ids), *mates, asked(ids))
        for again in (first, last):
            pairs = zip(vars(again).values(), vars(alone).values(), strict=True)
            assert all(np.array_equal(ours, theirs) for ours, theirs in pairs), most_tokens
