"""Measure a pair's acceptance baseline (``pipelines/bench/reporting/acceptance_baseline.py``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.errors import EngineFailedError, RequestRefusedError
from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.calibration import Calibration, EngineCosts
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import TokenIds
from pipelines.time_left import TimeLeft

_NUM_DRAFT_TOKENS = 4
_BUDGET_S = 8.0  # every rollout takes as long again
_LEAST_TOKENS, _MAX_TOKENS = 8, 64


def fitting_tokens(calibration: Calibration, num_prompts: int) -> int:
    """Return how long answers may be so that the baseline of a large pair does not take minutes.

    Args:
        calibration: Costs and acceptance of the pair.
        num_prompts: Prompts, which are answered concurrently.
    """

    def seconds(costs: EngineCosts, rows: int) -> float:
        return float(StepCosts(costs.rows, costs.seconds).seconds(rows))

    rate = sum(
        rate * share
        for rate, share in zip(calibration.acceptance_rates, calibration.margin_shares, strict=True)
    )
    round_s = _NUM_DRAFT_TOKENS * seconds(calibration.draft, num_prompts)
    round_s += seconds(calibration.target, num_prompts * (_NUM_DRAFT_TOKENS + 1))
    tokens_per_round = sum(rate**position for position in range(_NUM_DRAFT_TOKENS + 1))
    return min(max(int(_BUDGET_S / round_s * tokens_per_round), _LEAST_TOKENS), _MAX_TOKENS)


def measure_baseline(
    draft: Executor,
    target: Executor,
    prompts: Mapping[str, TokenIds],
    max_tokens: int,
    report: Callable[[str], None] = lambda line: None,
) -> AcceptanceBaseline:
    """Answer prompts greedily with a fixed draft length, and return the acceptance.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of the prompts, by name.
        max_tokens: Longest answer, tokens.
        report: Called with a line about the progress every few seconds.
    """
    answers = answer_prompts(
        draft,
        target,
        list(prompts.values()),
        num_draft_tokens=_NUM_DRAFT_TOKENS,
        max_tokens=max_tokens,
        temperature=0.0,
        report=report,
    )
    counts = answers.statistics
    return AcceptanceBaseline(
        num_draft_tokens=_NUM_DRAFT_TOKENS,
        max_tokens=max_tokens,
        prompts=tuple(BaselinePrompt(name, tuple(ids.tolist())) for name, ids in prompts.items()),
        num_rounds=sum(each.num_rounds for each in counts),
        total_draft_tokens=sum(each.total_draft_tokens for each in counts),
        accepted_per_position=tuple(
            sum(each.accepted_per_position[position] for each in counts)
            for position in range(_NUM_DRAFT_TOKENS)
        ),
    )


@dataclass(frozen=True)
class Answers:
    """The answers of a pair to the prompts, in order.

    Attributes:
        token_ids: Output tokens of each answer.
        statistics: Counts of each answer.
    """

    token_ids: tuple[TokenIds, ...]
    statistics: tuple[SpeculationStatistics, ...]

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted over all prompts."""
        accepted = sum(each.total_accepted_draft_tokens for each in self.statistics)
        return accepted / sum(each.total_draft_tokens for each in self.statistics)


def answer_prompts(
    draft: Executor,
    target: Executor,
    prompts: Sequence[TokenIds],
    *,
    num_draft_tokens: int,
    max_tokens: int,
    temperature: float,
    report: Callable[[str], None] = lambda line: None,
) -> Answers:
    """Answer all prompts concurrently; the seed of prompt i is i, so that output depends only on the target.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of the prompts.
        num_draft_tokens: Draft tokens per round.
        max_tokens: Longest answer, tokens.
        temperature: 0 for greedy; otherwise draft and target share noise.
        report: Called with a line about the progress every few seconds.

    Raises:
        EngineFailedError: A step failed, of the draft or of the target.
    """
    total = len(prompts) * max_tokens
    progress = TimeLeft(total, report, lambda done: f"answering prompts: {done / total:.0%}")
    statistics = tuple(SpeculationStatistics(max_draft_len=num_draft_tokens) for _ in prompts)
    loop = StepLoop((draft, target))
    loop.start()
    failures: list[EngineFailedError] = []

    async def propose(request: GenerationRequest) -> Output:
        try:
            return await draft.complete(request)
        except EngineFailedError as error:
            if not isinstance(error, RequestRefusedError):
                failures.append(error)  # the loop goes on without the draft, and fewer tokens are accepted
            raise

    async def answer(number: int) -> TokenIds:
        request = GenerationRequest(
            f"prompt {number}",
            prompts[number],
            max_tokens,
            sampling=SamplingParams(temperature=temperature, seed=number),
            end_ids=target.config.end_ids,
        )
        parts = []
        async for part in speculate(request, propose, target.complete, FixedDraftLength(num_draft_tokens)):
            statistics[number].add_round(part)
            parts.append(part.token_ids)
            progress.advance(len(part.token_ids))
        answer_ids = np.concatenate(parts)
        progress.advance(max_tokens - len(answer_ids))  # it may have ended early
        return answer_ids

    async def answer_all() -> list[TokenIds]:
        return await asyncio.gather(*(answer(number) for number in range(len(prompts))))

    try:
        token_ids = tuple(loop.spawn(answer_all()).result())
    finally:
        loop.stop()
    if failures:
        raise failures[0]
    return Answers(token_ids, statistics)
