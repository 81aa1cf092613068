"""Tests that answers follow the target's distribution with real noise, behind executors that batch and cache.

``tests/exact`` enumerates every parameter and rule with ideal noise. Samples show faults of the noise and of
the cache, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.statistical.judge import Judgement, judge_law
from tests.statistical.served import NUM_COUNTED, Counts, count_served, joint_law

NUM_ANSWERS = 1_500
COUPLED, RATIO = False, True
EVERY_RULE = pytest.mark.parametrize("by_ratio", [COUPLED, RATIO], ids=["coupled", "ratio"])


def judgements(counts: Counts) -> list[Judgement]:
    return [
        judge_law(f"joint law of {NUM_COUNTED} tokens", counts.cells, joint_law()),
        Judgement("acceptance", counts.acceptance()),
    ]


@EVERY_RULE
def test_served_answers_follow_the_targets_distribution(
    by_ratio: bool, accept: Callable[[Judgement], None]
) -> None:
    counts = count_served(range(NUM_ANSWERS), by_ratio=by_ratio)
    for judgement in judgements(counts):
        accept(judgement)
    assert counts.strata.keys() == {(index, full) for index in (0, 1) for full in (False, True)}
    assert all(totals[0] > 500 for totals in counts.strata.values())
