"""Choosing tokens; run: pytest tests/unit/test_sampling.py."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.speculation.noise import gumbel_at, uniform_at
from pipelines.speculation.sampling import choose_token, processed_logits
from pipelines.speculation.sampling_params import SamplingParams

LOGITS = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))


def kept(**params: float) -> list[int]:
    return np.flatnonzero(
        np.isfinite(processed_logits(LOGITS, SamplingParams(temperature=1.0, **params)))
    ).tolist()


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    assert choose_token(np.array([1, 3, 3, 0], np.float32), SamplingParams(), 0) == 1


def test_top_k_and_top_p_keep_the_fewest_tokens_that_suffice() -> None:
    assert kept(top_k=2) == [0, 1]
    assert kept(top_k=99) == kept() == [0, 1, 2, 3]
    assert kept(top_p=0.4 - 1e-6) == [0]
    assert kept(top_p=0.5) == [0, 1]
    assert kept(top_p=0.9 + 1e-6) == [0, 1, 2, 3]
    assert kept(top_k=3, top_p=0.7) == [0, 1]  # 0.4 + 0.3 of 0.9 that top_k leaves


def test_top_k_breaks_ties_by_the_lower_id() -> None:
    scores = processed_logits(np.zeros(5, np.float32), SamplingParams(temperature=1.0, top_k=2))
    assert np.flatnonzero(np.isfinite(scores)).tolist() == [0, 1]


def test_noise_depends_on_seed_and_position_alone() -> None:
    assert np.array_equal(uniform_at(5, 9, 32), uniform_at(5, 9, 32))
    assert np.array_equal(uniform_at(5, 9, 32)[:8], uniform_at(5, 9, 8))
    assert not np.array_equal(uniform_at(5, 9, 32), uniform_at(5, 10, 32))
    assert not np.array_equal(uniform_at(5, 9, 32), uniform_at(6, 9, 32))
    assert uniform_at(2**64 - 1, 2**40, 4).min() > 0


def test_noise_is_the_same_on_every_machine() -> None:
    assert [f"{value:.15f}" for value in uniform_at(0, 0, 3)] == [
        f"{value:.15f}"
        for value in (np.random.Philox(key=[0, 0], counter=[0, 0, 0, 0]).random_raw(3) >> np.uint64(11))
        * 2.0**-53
        + 2.0**-54
    ]


def test_seed_zero_is_a_seed_like_any_other() -> None:
    sampling = SamplingParams(temperature=1.0, seed=0)
    assert len({choose_token(LOGITS, sampling, position) for position in range(50)}) > 1


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.65}, {"top_k": 3, "top_p": 0.5}])
def test_sampled_tokens_follow_the_processed_distribution(params: dict[str, float]) -> None:
    """Pearson's chi-squared over 8,000 draws; the bound fails by chance once in about 1e9 runs."""
    sampling = SamplingParams(temperature=0.7, seed=11, **params)
    expected = np.exp(processed_logits(LOGITS, sampling))
    expected = 8_000 * expected / expected.sum()
    drawn = np.bincount([choose_token(LOGITS, sampling, position) for position in range(8_000)], minlength=4)
    possible = expected > 0
    assert not drawn[~possible].any()
    assert ((drawn - expected)[possible] ** 2 / expected[possible]).sum() < 46


def test_a_draft_that_shares_the_noise_agrees_more_often_than_one_that_does_not() -> None:
    other = np.log(np.array([0.35, 0.3, 0.2, 0.15], np.float32))
    target = SamplingParams(temperature=1.0, seed=1)
    shared = np.mean([choose_token(LOGITS, target, i) == choose_token(other, target, i) for i in range(4000)])
    stranger = SamplingParams(temperature=1.0, seed=2)
    apart = np.mean(
        [choose_token(LOGITS, target, i) == choose_token(other, stranger, i) for i in range(4000)]
    )
    total_variation = 0.05
    assert shared > (1 - total_variation) / (1 + total_variation) - 0.02
    assert apart < 0.4


def test_gumbel_noise_has_the_moments_of_its_law() -> None:
    noise = gumbel_at(3, 0, 200_000)
    assert abs(noise.mean() - 0.5772) < 0.02 and abs(noise.var() - np.pi**2 / 6) < 0.05
