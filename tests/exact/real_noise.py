"""Checks with the real noise, for faults that an enumeration of ideal noise cannot see by nature.

The enumeration knows each variable by its name (seed, stream, position) and takes different names for
independent noise. Whether they are, is a matter of the bits; and a seed that is thrown away leaves every
law as it is and breaks only the promise that an answer can be had again.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

import numpy as np

from pipelines.speculation.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampler import Sampler
from pipelines.speculation.sampling_params import SamplingParams
from tests.exact.cases import CASES
from tests.exact.engines import make_executor, run_at_once

NUM_DRAWS = 4000


def coin_and_draws_are_independent() -> None:
    """The ratio rule's first token follows the target's law, 4,000 positions of one seed.

    Seven standard deviations; with one stream for coin and proposal it is off by more than thirty.
    """
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


def an_answer_can_be_had_again() -> None:
    """The same request gives the same tokens, from the target alone and through the loop."""
    case = replace(CASES["no end token"], max_tokens=24, num_draft_tokens=3)
    request = case.whole_request()

    def complete(role: str, step: GenerationRequest) -> Awaitable[Output]:
        logits = case.draft_table if role == "draft" else case.target_table
        return make_executor(logits, case.vocabulary, role).complete(step)

    async def speculated() -> list[int]:
        rounds = speculate(
            request, partial(complete, "draft"), partial(complete, "target"), FixedDraftLength(3)
        )
        return [token_id async for part in rounds for token_id in part.token_ids.tolist()]

    alone = run_at_once(complete("target", request)).token_ids.tolist()
    again = run_at_once(complete("target", request)).token_ids.tolist()
    assert alone == again, f"asked again: {again}, not {alone}"
    found = run_at_once(speculated())
    assert found == alone, f"through the loop: {found}, not {alone}"
