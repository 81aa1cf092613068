"""Tests with the real noise, for faults that an enumeration of ideal noise cannot see.

The enumeration takes different seeds, streams and positions for independent. Whether the real bits are
independent must be measured. Ignoring a seed changes no distribution; it only makes answers irreproducible.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

import numpy as np

from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.sampling.sampler import Sampler
from tests.exact.cases import CASES
from tests.exact.engines import make_executor, run_at_once

NUM_DRAWS = 4000
CASE = replace(CASES["no end token"], max_tokens=24, num_draft_tokens=3)


def test_coin_and_draws_are_independent() -> None:
    """The limit is seven standard deviations; with one stream for both the difference exceeds thirty."""
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.5, 0.3, 0.2])
    logits, draft_logits = np.log(p).astype(np.float32), np.log(q).astype(np.float32)
    request = GenerationRequest(
        "real", np.zeros(1, np.int32), 1, sampling=SamplingParams(temperature=1.0, seed=5)
    )
    draft, target = Sampler(replace(request, independent_noise=True), 3), Sampler(request, 3)
    counts = np.zeros(3)
    for position in range(1, NUM_DRAWS + 1):
        draft.position = target.position = position
        counts[target.verify(logits, draft.choose(draft_logits), draft_logits)] += 1
    deviations = (counts - NUM_DRAWS * p) / np.sqrt(NUM_DRAWS * p * (1 - p))
    assert np.abs(deviations).max() < 7, f"{counts} of {NUM_DRAWS} tokens where {p} is the law"


def complete(request: GenerationRequest, role: str = "target") -> Awaitable[Output]:
    logits = CASE.draft_table if role == "draft" else CASE.target_table
    return make_executor(logits, CASE.vocabulary, role).complete(request)


def tokens_of(request: GenerationRequest) -> list[int]:
    return run_at_once(complete(request)).token_ids.tolist()


def test_an_answer_can_be_had_again() -> None:
    request = CASE.whole_request()

    async def speculated() -> list[int]:
        rounds = speculate(request, partial(complete, role="draft"), complete, FixedDraftLength(3))
        return [token_id async for part in rounds for token_id in part.token_ids.tolist()]

    assert tokens_of(request) == tokens_of(request) == run_at_once(speculated())


def test_each_bit_of_a_seed_counts() -> None:
    request = CASE.whole_request()
    seeds = (replace(request.sampling, seed=1 << bit) for bit in range(64))
    answers = {tuple(tokens_of(replace(request, sampling=each))) for each in seeds}
    assert len(answers) == 64
