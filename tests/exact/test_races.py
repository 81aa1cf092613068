"""Tests of the exact model of shared noise, and of how often two models agree: pytest tests/exact."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.speculation.sampling.draws import draw_token
from pipelines.speculation.sampling.noise import NoiseStream
from tests.exact.races import agreement, total_variation, untouched


def laws(num_tokens: int) -> st.SearchStrategy[tuple[Fraction, ...]]:
    weights = st.lists(st.integers(0, 12), min_size=num_tokens, max_size=num_tokens).filter(any)
    return weights.map(lambda found: tuple(Fraction(weight, sum(found)) for weight in found))


PAIRS = st.integers(2, 4).flatmap(lambda num_tokens: st.tuples(laws(num_tokens), laws(num_tokens)))


@given(PAIRS)
def test_a_race_is_won_in_proportion_to_the_weights(
    pair: tuple[tuple[Fraction, ...], tuple[Fraction, ...]],
) -> None:
    """A second race with the same noise is won in proportion to its own weights, too."""
    p, q = pair
    parts = untouched(len(p)).split(p)
    assert {token: cell.volume for token, cell in parts} == {i: x for i, x in enumerate(p) if x}
    second = [Fraction(0)] * len(q)
    for _, cell in parts:
        for token, rest in cell.split(q):
            second[token] += rest.volume
    assert tuple(second) == q


@given(PAIRS)
def test_the_closed_form_of_agreement_is_the_volume_where_both_choose_the_same(
    pair: tuple[tuple[Fraction, ...], tuple[Fraction, ...]],
) -> None:
    p, q = pair
    found = [Fraction(0)] * len(p)
    for token, cell in untouched(len(p)).split(p):
        found[token] = sum((rest.volume for other, rest in cell.split(q) if other == token), Fraction(0))
    assert found == agreement(p, q)


@given(PAIRS)
def test_two_models_agree_at_least_as_often_as_the_bound_says(
    pair: tuple[tuple[Fraction, ...], tuple[Fraction, ...]],
) -> None:
    distance = total_variation(*pair)
    assert (1 - distance) / (1 + distance) <= sum(agreement(*pair)) <= 1 - distance


@pytest.mark.parametrize(
    ("p", "q"),
    [
        ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)),
        ((0.6, 0.4, 0.0), (0.1, 0.1, 0.8)),
        ((0.9, 0.05, 0.05), (0.8, 0.1, 0.1)),
    ],
)
def test_the_real_noise_makes_two_models_agree_as_often(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    """The test uses the same 4,000 positions of one seed each time; its limit is six standard deviations."""
    num_positions = 4000
    with np.errstate(divide="ignore"):
        scores = [np.log(np.array(law)) for law in (p, q)]
    joint = np.zeros((3, 3))
    for position in range(num_positions):
        joint[tuple(draw_token(own, 3, NoiseStream.SHARED, position) for own in scores)] += 1 / num_positions
    exact = agreement(*([Fraction(x).limit_denominator(100) for x in law] for law in (p, q)))
    limit = 6 * 0.5 / num_positions**0.5
    assert np.abs(joint.diagonal() - np.array(exact, float)).max() < limit
    assert np.abs(joint.sum(axis=1) - p).max() < limit and np.abs(joint.sum(axis=0) - q).max() < limit
