"""Answers prompts with two executors and the loop, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import TokenIds


@dataclass(frozen=True)
class Answers:
    """The output tokens of each answer, and the counts of all."""

    token_ids: list[list[int]]
    statistics: SpeculationStatistics


def answer_prompts(
    draft: Executor,
    target: Executor,
    prompts: Sequence[TokenIds],
    num_draft_tokens: int,
    *,
    max_tokens: int,
    temperature: float,
) -> Answers:
    """Answer all prompts at once; the seed of prompt i is i, so that output depends only on the target."""
    statistics = SpeculationStatistics(num_draft_tokens)
    loop = StepLoop((draft, target))

    async def answer(number: int) -> list[int]:
        request = GenerationRequest(
            f"prompt {number}",
            prompts[number],
            max_tokens,
            sampling=SamplingParams(temperature=temperature, seed=number),
            end_ids=target.config.end_ids,
        )
        parts = []
        length = FixedDraftLength(num_draft_tokens)
        async for part in speculate(request, draft.complete, target.complete, length):
            statistics.add_round(part)
            parts.append(part.token_ids)
        return [int(token_id) for token_id in np.concatenate(parts)]

    async def answer_all() -> list[list[int]]:
        return await asyncio.gather(*map(answer, range(len(prompts))))

    loop.start()
    try:
        return Answers(loop.spawn(answer_all()).result(), statistics)
    finally:
        loop.stop()
