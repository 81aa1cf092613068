"""Measure how often the target accepts draft tokens: by class of their margin, and over fixed prompts.

The draft length follows the first (``speculation/draft_length/survival.py``); a rollout repeats the greedy
answers of the second (``pipelines/bench/reporting/acceptance_baseline.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.bench.calibration.step_costs import PairCosts
from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.errors import EngineFailedError, IncompatiblePairError, RequestRefusedError
from pipelines.executor.executor import Executor
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.calibration import EngineCosts
from pipelines.speculation.draft_length.draft_plan import DraftPlan, FixedDraftLength, Proposal
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.draft_length.survival import NUM_CLASSES, class_of
from pipelines.speculation.loop import speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.statistics import SpeculationStatistics
from pipelines.speculation.token_ids import TokenIds, count_accepted
from pipelines.time_left import TimeLeft

_NUM_DRAFT_TOKENS = 4
_SAMPLED = 0.8  # temperature of the second answers, which are half as long
_BUDGET_S = 5.0  # for the greedy answers, without the prompts; every rollout takes as long again
_LEAST_TOKENS, _MAX_TOKENS = 8, 64
_ASSUMED_ACCEPTANCE = 0.6
# Pseudo-count: each class gets this many observations with the average acceptance rate.
_PRIOR_WEIGHT = 4.0


def fitting_tokens(costs: PairCosts, num_prompts: int) -> int:
    """Return how long answers may be so that the acceptance of a large pair does not take minutes.

    Args:
        costs: Step costs of the pair.
        num_prompts: Prompts, which are answered concurrently.
    """

    def seconds(engine: EngineCosts, rows: int) -> float:
        return float(StepCosts(engine.rows, engine.seconds).seconds(rows))

    round_s = _NUM_DRAFT_TOKENS * seconds(costs.draft, num_prompts)
    round_s += seconds(costs.target, num_prompts * (_NUM_DRAFT_TOKENS + 1))
    tokens_per_round = sum(_ASSUMED_ACCEPTANCE**position for position in range(_NUM_DRAFT_TOKENS + 1))
    return min(max(int(_BUDGET_S / round_s * tokens_per_round), _LEAST_TOKENS), _MAX_TOKENS)


@dataclass(frozen=True)
class Acceptance:
    """The share of draft tokens that the target accepts, by margin and over the prompts.

    Attributes:
        rates: Acceptance rate of each class of margins.
        shares: Relative frequency of each class.
        baseline: The greedy answers.
    """

    rates: tuple[float, ...]
    shares: tuple[float, ...]
    baseline: AcceptanceBaseline


def measure_acceptance(
    draft: Executor,
    target: Executor,
    prompts: Mapping[str, TokenIds],
    max_tokens: int,
    report: Callable[[str], None] = lambda line: None,
) -> Acceptance:
    """Answer prompts, greedy and sampled, and count accepted draft tokens.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of typical prompts, by name.
        max_tokens: Longest greedy answer, tokens.
        report: Called with a line about the progress every few seconds.

    Raises:
        EngineFailedError: A step failed, of the draft or of the target.
        IncompatiblePairError: The draft proposed nothing.
    """
    margins = _Margins()
    greedy, _ = (
        answer_prompts(
            draft,
            target,
            list(prompts.values()),
            new_length=margins.new_length,
            max_tokens=length,
            temperature=temperature,
            report=report,
        )
        for temperature, length in ((0.0, max_tokens), (_SAMPLED, -(-max_tokens // 2)))
    )
    if not margins.num_seen.sum():
        raise IncompatiblePairError(
            "the draft proposed no token while the pair was calibrated",
            values=f"{len(prompts)} prompts",
            limit="the rates at which draft tokens are accepted need draft tokens",
            remedy="read the draft's warning, if there is one; use another draft, or prompts "
            "whose answers are longer",
        )
    overall = margins.num_accepted.sum() / margins.num_seen.sum()
    rates = (margins.num_accepted + _PRIOR_WEIGHT * overall) / (margins.num_seen + _PRIOR_WEIGHT)
    shares = (margins.num_seen + 1) / (margins.num_seen + 1).sum()
    counts = greedy.statistics
    baseline = AcceptanceBaseline(
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
    return Acceptance(tuple(rates.tolist()), tuple(shares.tolist()), baseline)


class _Margins:
    """Accepted and verified draft tokens by class of their margin, over all answers."""

    def __init__(self) -> None:
        self.num_seen = np.zeros(NUM_CLASSES)
        self.num_accepted = np.zeros(NUM_CLASSES)

    def new_length(self) -> FixedDraftLength:
        """Return the draft length of one answer, which counts here."""
        return _RecordedLength(self)


class _RecordedLength(FixedDraftLength):
    """A fixed draft length that asks for the margins of draft tokens and records which are accepted."""

    def __init__(self, margins: _Margins) -> None:
        super().__init__(_NUM_DRAFT_TOKENS)
        self._margins = margins

    def next_round(self, num_remaining: int) -> DraftPlan:
        return replace(super().next_round(num_remaining), keep_drafting=lambda: lambda margin: True)

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        if proposal.drafted is None or proposal.drafted.margins is None:
            return
        num_accepted = count_accepted(proposal.token_ids, token_ids)
        for index, margin in enumerate(proposal.drafted.margins[: len(token_ids)].tolist()):
            self._margins.num_seen[class_of(margin)] += 1
            self._margins.num_accepted[class_of(margin)] += index < num_accepted


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
    new_length: Callable[[], FixedDraftLength],
    max_tokens: int,
    temperature: float,
    report: Callable[[str], None] = lambda line: None,
) -> Answers:
    """Answer all prompts concurrently; the seed of prompt i is i, so that output depends only on the target.

    Args:
        draft: Engine of the draft.
        target: Engine of the target.
        prompts: Token ids of the prompts.
        new_length: Returns the draft length of one answer.
        max_tokens: Longest answer, tokens.
        temperature: 0 for greedy; otherwise draft and target share noise.
        report: Called with a line about the progress every few seconds.

    Raises:
        EngineFailedError: A step failed, of the draft or of the target.
    """
    total = len(prompts) * max_tokens
    progress = TimeLeft(total, report, lambda done: f"answering prompts: {done / total:.0%}")
    lengths = [new_length() for _ in prompts]
    statistics = tuple(SpeculationStatistics(length.max_draft_len) for length in lengths)
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
        async for part in speculate(request, propose, target.complete, lengths[number]):
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
