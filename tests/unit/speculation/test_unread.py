"""Tests of whether the draft reads a long prompt, and of the costs of a round by context length."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.speculation.draft_length.adaptive import DraftLengths
from pipelines.speculation.draft_length.draft_plan import NO_DRAFT
from pipelines.speculation.draft_length.goodput import Prospect, best_draft
from pipelines.speculation.draft_length.request_draft_length import RequestDraftLength
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.draft_length.survival import AcceptanceByMargin
from pipelines.speculation.request import Output
from tests.unit.speculation.draft_length_world import MAX_DRAFT_LEN, RATES, SHARES

# 1 billion parameters and a draft of 135 million, seconds (2-core AMD EPYC), but rows that share a context
# read it for less: with 3e-6 and 8e-7, as measured, no draft pays at 32k tokens.
ROWS = (2, 9, 64)
TARGET = (ROWS, (0.037, 0.049, 0.16), 3e-7)
DRAFT = (ROWS, (0.008, 0.010, 0.025), 2e-7)
LONG = 32_000


def controller(num_unread: int | None = None) -> DraftLengths:
    """Return a controller whose draft has read all but some tokens of each prompt; None if nothing."""
    return DraftLengths(
        AcceptanceByMargin(RATES, SHARES),
        StepCosts(*DRAFT),
        StepCosts(*TARGET),
        MAX_DRAFT_LEN,
        lambda token_ids: 0 if num_unread is None else len(token_ids) - num_unread,
    )


def begin(lengths: DraftLengths, num_tokens: int) -> RequestDraftLength:
    return lengths.begin(np.arange(num_tokens, dtype=np.int32))  # nothing repeats


def generate(request: RequestDraftLength, num_tokens: int) -> None:
    first = 10**6 + request.num_tokens  # nothing repeats
    tokens = np.arange(first, first + num_tokens, dtype=np.int32)
    request.observe(NO_DRAFT.complete(None), tokens)


def drafts(request: RequestDraftLength) -> bool:
    return request.next_round(1000).max_tokens > 0


def test_a_long_prompt_is_not_read_by_the_draft_for_a_short_answer() -> None:
    assert drafts(begin(controller(), 64))
    assert drafts(begin(controller(), 1000))
    assert not drafts(begin(controller(), LONG))


def test_it_is_read_when_the_answer_is_long_or_the_draft_knows_it() -> None:
    request = begin(controller(), LONG)
    generate(request, 20_000)
    assert drafts(request)
    assert drafts(begin(controller(num_unread=50), LONG))


def test_what_was_read_for_a_draft_is_known() -> None:
    request = begin(controller(num_unread=50), LONG)
    plan = request.next_round(1000)
    drafted = Output(np.array([3], np.int32), "length", True, margins=np.array([1.0], np.float32))
    request.observe(plan.complete(drafted), np.array([4], np.int32))
    assert request.num_read == LONG
    assert drafts(request)


def test_a_long_prompt_is_not_read_for_a_trial_either() -> None:
    hopeless = AcceptanceByMargin(tuple(0.01 * rate for rate in RATES), SHARES)
    lengths = DraftLengths(hopeless, StepCosts(*DRAFT), StepCosts(*TARGET), MAX_DRAFT_LEN)
    for num_tokens, is_tried in ((64, True), (LONG, False)):
        request = begin(lengths, num_tokens)
        plans = []
        for _ in range(40):
            plans.append(request.next_round(1000))
            generate(request, 1)
        assert any(plan.max_tokens for plan in plans) == is_tried
        lengths.end(request)


def test_reading_costs_more_the_further_it_goes() -> None:
    costs = StepCosts(*DRAFT)
    first, later = costs.reading_s(0, 4000), costs.reading_s(28_000, 32_000)
    assert later > 3 * first
    assert costs.reading_s(0, 4000) + costs.reading_s(4000, 8000) == pytest.approx(costs.reading_s(0, 8000))
    assert costs.reading_s(500, 500) == 0


def test_a_prompt_is_not_read_for_nothing_where_rows_share_their_context() -> None:
    without_context = StepCosts(*DRAFT[:2]).reading_s(28_000, 32_000)
    assert StepCosts(*DRAFT[:2], 1e-6, 0.0).reading_s(28_000, 32_000) > 1.2 * without_context


def test_the_drafts_own_context_makes_long_proposals_worth_less() -> None:
    """A draft whose cache is as large as the target's costs as much there, which short contexts hide."""
    survival = np.cumprod(np.full((1, 8, 8), 0.8), axis=2)

    def depth(mean_context: float) -> int:
        prospect = Prospect(survival, np.array([0.8]), np.array([True]), mean_context)
        return best_draft(prospect, StepCosts(ROWS, DRAFT[1], 3e-6), StepCosts(*TARGET)).depth

    assert depth(LONG) < depth(64)
