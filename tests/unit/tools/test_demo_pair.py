"""Tests of the committed demonstration pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from build.checkpoints.tensor_file import read_tensors
from build.networks.source import open_network

PAIR = Path(__file__).resolve().parents[3] / "engines" / "demo_pair"
MODELS = ("target", "draft")
PROMPT_SETS = {"code": 400, "mixed": 64, "adversarial": 64, "repetitive": 64}

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.Tokenizer.from_file(str(PAIR / "target" / "tokenizer.json"))


@pytest.fixture(scope="module")
def evaluation():
    return json.loads((PAIR / "evaluation.json").read_text(encoding="utf-8"))


def prompts_of(name: str) -> list[dict[str, str]]:
    return [
        json.loads(line)
        for line in (PAIR / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize("model", MODELS)
def test_checkpoint_is_whole(model):
    config = open_network(PAIR / model).config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_size) == (4, 2, 64)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (256, 768, 2048)
    assert config.num_hidden_layers == {"target": 8, "draft": 2}[model]
    for name, tensor in read_tensors(PAIR / model / "rank0.safetensors").items():
        values = tensor.to_float32()
        assert np.isfinite(values).all() and values.std() > 0, name


@pytest.mark.parametrize("name", PROMPT_SETS)
def test_prompt_sets_are_complete(name, tokenizer):
    prompts = prompts_of(name)
    assert len(prompts) >= PROMPT_SETS[name]
    assert len({prompt["id"] for prompt in prompts}) == len(prompts)
    assert all(0 < len(tokenizer.encode(prompt["text"]).ids) <= 512 for prompt in prompts)


def test_evaluation_meets_what_the_documents_claim(evaluation):
    assert evaluation["greedy"]["all_outputs"]["4"]["acceptance_rate"] > 0.50
    assert evaluation["sampled"]["all_outputs"]["4"]["acceptance_rate"] > 0.39
    assert evaluation["conditions"]["prompts"] >= 96
