"""Tests of logits and log probabilities: what NVIDIA's engines return, and how the adapter uses it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.watched_draft import WatchedDraft
from tests.stand_in_tensorrt_llm.in_process import InProcessCalls
from tests.unit.tensorrt_llm.test_serving_engines import request, rounds_of, running


def test_a_draft_without_logits_refuses_sampled_requests_and_goes_on_with_greedy_ones(tmp_path: Path) -> None:
    """An engine that was built without the flag: one client that samples must not stop the others."""
    calls = InProcessCalls(draft_gathers_logits=False)
    with running(tmp_path, calls) as engines:
        draft = WatchedDraft(engines.draft)

        async def num_drafted(asked: GenerationRequest, *, by_ratio: bool) -> int:
            lengths = FixedDraftLength(4)
            loop = speculate(
                asked, draft, engines.target, lengths, stream=engines.stream, use_draft_logits=by_ratio
            )
            return sum([outcome.num_draft_tokens async for outcome in loop])

        sampled = request(12, sampling=SamplingParams(temperature=0.5, seed=4))
        assert asyncio.run(num_drafted(sampled, by_ratio=True)) == 0
        assert asyncio.run(num_drafted(request(12), by_ratio=False)) > 0
    assert (draft.num_refusals, draft.num_failures, draft.is_available) == (1, 0, True)


def test_logits_are_fitted_to_the_targets_columns(tmp_path: Path) -> None:
    calls = InProcessCalls(draft_columns=2050, target_columns=2056)
    sampling = SamplingParams(temperature=0.5, seed=4, logit_bias=((3, 1.0),))
    with running(tmp_path, calls, padded_vocab_size="2056", draft_padded_vocab_size="2050") as engines:
        asyncio.run(rounds_of(engines, request(12, sampling=sampling), 3, by_ratio=True))
    handed = [tensors["draft_logits"] for _, tensors in calls.asked if "draft_logits" in tensors]
    assert handed and all(logits.shape[2] == 2056 for logits in handed)
    weights = np.exp(handed[0][0, 0].astype(np.float64) - handed[0].max())
    assert weights[2048:].sum() == 0
