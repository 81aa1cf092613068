"""Real pairs of several kinds: the output is the target's own, whatever was proposed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.speculation.loop import Round
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import GREEDY, SamplingParams
from tests.support.recording_engine import request, rounds_of, run, tokens_of
from tests.support.tiny_engines import build_tiny_pair

_LIMITS = ExecutorLimits(
    max_batch_size=8, max_num_tokens=64, max_seq_len=256, max_queue_size=8, num_kv_blocks=64
)
_NUM_TOKENS = 40


def requests(temperature: float) -> list[GenerationRequest]:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(1, 2000, 3 + 7 * number).tolist() for number in range(5)]
    sampling = [
        SamplingParams(temperature=temperature, seed=seed) if temperature else GREEDY for seed in range(5)
    ]
    return [
        request(prompt, _NUM_TOKENS, sampling=each) for prompt, each in zip(prompts, sampling, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "linear", "attention", "quantization"),
    [
        ("head", "draftproof", "draftproof", "int8"),
        ("head", "openvino", "draftproof", "int8"),
        ("head", "openvino", "openvino", "none"),
        ("mixture", "draftproof", "openvino", "int8"),
        ("gpt_oss", "draftproof", "draftproof", "int8"),
        ("one pass", "draftproof", "draftproof", "int8"),
        ("one pass", "openvino", "openvino", "none"),
    ],
)
def test_the_output_is_that_of_the_target_alone(
    tmp_path: Path, kind: str, linear: str, attention: str, quantization: str
) -> None:
    form = {"linear": linear, "attention": attention, "quantization": quantization}
    targets = {} if kind in ("head", "one pass") else {"target": kind}
    folders = build_tiny_pair(tmp_path, draft="head" if kind == "head" else "self", **targets, **form)
    for temperature in (0.0, 0.7):
        draft, target, cold = (Executor.load(each, _LIMITS) for each in (*folders, folders[1]))
        asked = requests(temperature)
        if kind == "one pass":
            draft.config = replace(draft.config, mask_token_id=5)

        async def answered(
            asked: list[GenerationRequest] = asked, draft: Executor = draft, target: Executor = target
        ) -> list[list[Round]]:
            return await asyncio.gather(*(rounds_of(each, draft.complete, target, 4) for each in asked))

        rounds = run([draft, target], answered)
        for each, found in zip(asked, rounds, strict=True):
            alone = run([cold], lambda each=each: cold.complete(each))
            assert tokens_of(found) == alone.token_ids.tolist()
        num_accepted = sum(part.num_accepted_tokens for found in rounds for part in found)
        assert num_accepted > _NUM_TOKENS, "drafts are better than by chance"
