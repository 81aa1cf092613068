"""Tests that answers follow the target's distribution behind executors that batch and cache.

Run: pytest tests/statistical.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statistical.judge import Judgement, judge_law
from tests.statistical.outcomes import joint_law
from tests.statistical.pairs import LONG
from tests.statistical.table_engine import count_served

NUM_ANSWERS = 1_500


@pytest.mark.parametrize(
    "use_draft_logits", [False, pytest.param(True, marks=pytest.mark.long)], ids=["coupled", "ratio"]
)
def test_served_answers_follow_the_targets_distribution(
    use_draft_logits: bool, accept: Callable[[Judgement], None]
) -> None:
    counts = count_served(LONG, use_draft_logits, range(NUM_ANSWERS))
    name = f"{LONG.name}, {'ratio' if use_draft_logits else 'coupled'} rule, served"
    accept(judge_law(f"joint law of {LONG.num_counted} tokens, {name}", counts.cells, joint_law(LONG)))
    accept(Judgement(f"acceptance, {name}", counts.acceptance.outcome()))
    assert counts.acceptance.strata.keys() == {(index, full) for index in (0, 1) for full in (False, True)}
    assert all(totals[0] > 500 for totals in counts.acceptance.strata.values())
