"""Records how often the target accepts draft tokens of each margin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_plan import DraftPlan, Proposal, all_of
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest
from pipelines.speculation.sampling_params import SamplingParams
from pipelines.speculation.survival import NUM_CLASSES, class_of
from pipelines.speculation.token_ids import TokenIds

_DRAFT_LENGTH = 4
_TEMPERATURES = (0.0, 0.8)
_MAX_TOKENS = 64
# A class that was seen seldom is taken to be as good as one with this many more of average outcome.
_PRIOR_WEIGHT = 4.0


class _Recorder:
    """A draft length that drafts always the same and writes down what becomes of it."""

    def __init__(self) -> None:
        self.num_seen = np.zeros(NUM_CLASSES)
        self.num_accepted = np.zeros(NUM_CLASSES)

    def next_round(self, num_remaining: int) -> DraftPlan:
        plan = all_of(min(_DRAFT_LENGTH, num_remaining - 1))
        return replace(plan, keep_drafting=lambda: lambda margin: True)

    def num_alone(self, num_remaining: int) -> int:
        return num_remaining

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        if proposal.drafted is None or proposal.drafted.margins is None:
            return
        num_accepted = count_accepted(proposal.token_ids, token_ids)
        for index, margin in enumerate(proposal.drafted.margins[: len(token_ids)].tolist()):
            self.num_seen[class_of(margin)] += 1
            self.num_accepted[class_of(margin)] += index < num_accepted


def measure_acceptance(
    draft: Executor, target: Executor, prompts: Sequence[TokenIds]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Answer prompts, greedy and sampled, and count.

    Args:
        draft: Proposes.
        target: Verifies.
        prompts: Token ids of texts that the pair will meet.

    Returns:
        Acceptance rate of each class of margins, and how often each class occurred.
    """
    recorder = _Recorder()
    loop = StepLoop((draft, target))
    loop.start()

    async def answer(number: int, prompt: TokenIds, temperature: float) -> None:
        request = GenerationRequest(
            f"calibration {number}",
            prompt,
            _MAX_TOKENS,
            sampling=SamplingParams(temperature=temperature, seed=number),
            end_ids=target.config.end_ids,
        )
        async for _ in speculate(request, draft.complete, target.complete, recorder):
            pass

    async def answer_all() -> None:
        for temperature in _TEMPERATURES:
            await asyncio.gather(*(answer(i, prompt, temperature) for i, prompt in enumerate(prompts)))

    try:
        loop.spawn(answer_all()).result()
    finally:
        loop.stop()
    overall = recorder.num_accepted.sum() / max(recorder.num_seen.sum(), 1)
    rates = (recorder.num_accepted + _PRIOR_WEIGHT * overall) / (recorder.num_seen + _PRIOR_WEIGHT)
    shares = (recorder.num_seen + 1) / (recorder.num_seen + 1).sum()
    return tuple(rates.tolist()), tuple(shares.tolist())
