"""Tests of draft tokens that get no row: the output stays the same, and the counts show them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest

from pipelines.executor.rows import RowBudget
from pipelines.speculation.draft_length.draft_plan import DraftPlan, Proposal, all_of
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.loop import Round, speculate
from pipelines.speculation.request import GenerationRequest, Output
from pipelines.speculation.sampling.params import SamplingParams
from pipelines.speculation.token_ids import TokenIds
from tests.support.recording_engine import alone, draft_and_target, request, run, tokens_of

NUM_BLOCKS = 256
DEAR = StepCosts((2, 40), (0.010, 0.200))  # 5 ms a row
CHEAP = StepCosts((2, 40), (0.010, 0.010))
SAMPLED = SamplingParams(temperature=0.8, seed=7)


@dataclass
class Expects:
    """A drafting policy that drafts four tokens and expects each to be accepted with the same probability."""

    rate: float
    max_draft_len = 4

    def next_round(self, num_remaining: int) -> DraftPlan:
        plan = all_of(min(4, num_remaining - 1))

        def complete(drafted: Output | None) -> Proposal:
            proposal = plan.complete(drafted)
            survival = self.rate ** np.arange(1.0, len(proposal.token_ids) + 1)
            return Proposal(proposal.token_ids, survival, drafted)

        return DraftPlan(plan.max_tokens, plan.keep_drafting, complete)

    def num_alone(self, num_remaining: int) -> int:
        return num_remaining

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn nothing."""


def answer(rates: list[float], costs: StepCosts, sampling: SamplingParams) -> list[list[Round]]:
    """Answer concurrent requests, one per rate."""
    draft, target = draft_and_target()
    target.budget = RowBudget(costs, 0.0, lambda: 100.0)
    target.budget.costs.observe = lambda *args, **kwargs: None  # type: ignore[method-assign]

    async def one(number: int) -> list[Round]:
        found = speculate(
            asked(number, sampling),
            draft.complete,
            target.complete,
            Expects(rates[number]),
            stream=target.generate,
        )
        return [part async for part in found]

    async def all_at_once() -> list[list[Round]]:
        return await asyncio.gather(*(one(number) for number in range(len(rates))))

    return run([draft, target], all_at_once)


def asked(number: int, sampling: SamplingParams) -> GenerationRequest:
    return request([3, 1 + number, 4], 40, sampling=sampling)


def num_verified(rounds: list[Round]) -> int:
    return sum(part.num_draft_tokens for part in rounds)


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED])
@pytest.mark.parametrize("costs", [DEAR, CHEAP])
def test_the_output_is_that_of_the_target_alone_whatever_is_left_out(
    costs: StepCosts, sampling: SamplingParams
) -> None:
    answers = answer([0.9, 0.6, 0.3, 0.01], costs, sampling)
    assert list(map(tokens_of, answers)) == [alone(asked(number, sampling)) for number in range(4)]


def test_only_tokens_that_are_worth_a_row_are_verified() -> None:
    """A row costs half a token."""
    hopeful, doubtful, hopeless = answer([0.9, 0.6, 0.3], DEAR, SamplingParams())
    # The last one left may fill the two rows that a step has at least.
    assert num_verified(hopeful) > num_verified(doubtful) > num_verified(hopeless)
    assert not any(part.num_draft_tokens for part in hopeless[: len(doubtful)])
    assert max(part.num_draft_tokens for part in doubtful) == 1  # 0.6 is worth it, 0.36 is not
    assert all(part.num_accepted_tokens <= part.num_draft_tokens for part in hopeful)


def test_where_rows_cost_nothing_all_are_verified() -> None:
    (rounds,) = answer([0.3], CHEAP, SamplingParams())
    assert {part.num_draft_tokens for part in rounds[1:-2]} == {4}


def test_fewer_tokens_are_verified_in_a_context_that_is_expensive_to_read() -> None:
    dear_context = StepCosts((2, 40), (0.010, 0.010), seconds_per_position=0.0005)
    (rounds,) = answer([0.9], dear_context, SamplingParams())
    lengths = [part.num_draft_tokens for part in rounds[1:-1]]
    assert lengths[0] == 4 and lengths[-1] < 4
