"""Tests that the real loop, sampler and rules follow the target's distribution (``-m statistical``)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statistical.counting import count, count_on_all_cores
from tests.statistical.judge import POWER, TOTAL_VARIATION, Judgement, judge_law, size_for
from tests.statistical.outcomes import Counts, joint_law
from tests.statistical.pairs import PAIRS
from tests.statistical.tables import Pair

SMALL = 2_000

EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
EVERY_RULE = pytest.mark.parametrize("use_draft_logits", [False, True], ids=["coupled", "ratio"])


# tests/exact enumerates both rules with each parameter.
_IN_EVERY_RUN = ("temperature, reversed draft",)


@pytest.mark.parametrize(
    "use_draft_logits", [False, pytest.param(True, marks=pytest.mark.long)], ids=["coupled", "ratio"]
)
@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=[pytest.mark.long] * (pair.name not in _IN_EVERY_RUN)) for pair in PAIRS],
    ids=lambda pair: pair.name,
)
def test_few_answers_follow_the_targets_distribution(
    pair: Pair, use_draft_logits: bool, accept: Callable[[Judgement], None]
) -> None:
    _check(pair, use_draft_logits, count(pair, use_draft_logits, range(SMALL)), accept)


@pytest.mark.statistical
@EVERY_RULE
@EVERY_PAIR
def test_answers_follow_the_targets_distribution(
    pair: Pair, use_draft_logits: bool, accept: Callable[[Judgement], None]
) -> None:
    num_samples = size_for(joint_law(pair))
    judgement = _check(
        pair, use_draft_logits, count_on_all_cores(pair, use_draft_logits, num_samples), accept
    )
    assert judgement.power_at(TOTAL_VARIATION) >= POWER


def _check(
    pair: Pair, use_draft_logits: bool, counts: Counts, accept: Callable[[Judgement], None]
) -> Judgement:
    rejected = counts.acceptance.rejection_rate
    assert pair.rejected[0] < rejected < pair.rejected[1], (
        "recovered tokens must be tested, and accepted ones"
    )
    name = f"{pair.name}, {'ratio' if use_draft_logits else 'coupled'} rule, {rejected:.0%} rejected"
    judgement = judge_law(f"joint law of {pair.num_counted} tokens, {name}", counts.cells, joint_law(pair))
    accept(judgement)
    if not pair.request.end_ids:
        accept(Judgement(f"acceptance, {name}", counts.acceptance.outcome()))
    return judgement
