"""Tests that answers follow the target's distribution with real noise, behind executors that batch and cache.

``tests/exact`` enumerates every parameter and rule with ideal noise. Samples show faults of the noise and of
the cache, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pipelines.speculation.sampling import draws
from pipelines.speculation.sampling.noise import NoiseStream, words_at
from tests.exact.faulty_variants import VARIANTS, Variant
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


def cut_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few different seeds change no distribution that an enumeration of ideal noise could see."""

    def words(seed: int, stream: NoiseStream, position: int, count: int) -> np.ndarray:
        return words_at(seed % 256, stream, position, count)

    monkeypatch.setattr(draws, "words_at", words)


BEHIND = "a draft cache one token behind after full acceptance"


@pytest.mark.parametrize(
    ("name", "variant", "by_ratio", "num_answers"),
    [
        ("no residual", VARIANTS["no residual"], RATIO, NUM_ANSWERS),
        pytest.param("seed cut to 8 bits", cut_the_seed, COUPLED, 6_000, marks=pytest.mark.long),
        pytest.param(BEHIND, VARIANTS[BEHIND], COUPLED, NUM_ANSWERS, marks=pytest.mark.long),
        pytest.param(BEHIND, VARIANTS[BEHIND], RATIO, NUM_ANSWERS, marks=pytest.mark.long),
    ],
)
def test_a_faulty_variant_is_rejected(
    name: str,
    variant: Variant,
    by_ratio: bool,
    num_answers: int,
    monkeypatch: pytest.MonkeyPatch,
    reject: Callable[[str, list[Judgement]], None],
) -> None:
    variant(monkeypatch)
    reject(name, judgements(count_served(range(num_answers), by_ratio=by_ratio)))
