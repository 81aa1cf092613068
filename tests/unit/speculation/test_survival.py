"""Tests of the estimates of acceptance from margins, for the server and for one request."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.speculation.draft_length.survival import (
    NUM_CLASSES,
    AcceptanceByMargin,
    RequestAcceptance,
    class_of,
)
from pipelines.speculation.sampling.draws import MAX_MARGIN, draw_token, draw_with_margin, margin_of
from pipelines.speculation.sampling.noise import NoiseStream, gumbel, words_at

RATES = np.linspace(0.4, 0.95, NUM_CLASSES)
SHARES = np.full(NUM_CLASSES, 1 / NUM_CLASSES)


def common() -> AcceptanceByMargin:
    return AcceptanceByMargin(RATES.tolist(), SHARES.tolist())


def test_margins_fall_into_the_classes_between_their_edges() -> None:
    assert [class_of(margin) for margin in (0.0, 0.05, 0.1, 0.3, 1.0, 99.0)] == [0, 0, 1, 2, 4, 8]


def test_a_request_whose_text_does_not_suit_the_draft_is_told_from_the_others() -> None:
    server = common()
    good, bad = RequestAcceptance(server), RequestAcceptance(server)
    for _ in range(30):
        good.observe([0.3, 0.3], 2)
        bad.observe([0.3], 0)
    assert bad.factor < 0.2 < 1.0 < good.factor
    assert bad.mean_rate < good.mean_rate
    assert good.rate(0.3) <= 1.0


def test_tokens_after_the_first_refused_one_tell_nothing() -> None:
    first, second = common(), common()
    RequestAcceptance(first).observe([0.05, 0.3, 2.5], 1)
    RequestAcceptance(second).observe([0.05, 0.3], 1)
    assert first.rates.tolist() == second.rates.tolist()


def test_a_change_of_the_text_is_noticed_within_a_few_tokens() -> None:
    request = RequestAcceptance(common())
    for _ in range(50):
        request.observe([3.5], 0)
    for _ in range(8):
        request.observe([3.5], 1)
    assert request.factor > 0.7


def test_one_right_token_after_many_wrong_ones_promises_no_certainty() -> None:
    server = common()
    for _ in range(40):
        RequestAcceptance(server).observe([0.3], 0)
    request = RequestAcceptance(server)
    request.observe([0.3], 1)
    assert 0.5 < request.factor < 1.2, "alone it would make the factor 1.9"


def test_the_server_learns_what_margins_tell_of_its_pair() -> None:
    server = common()
    request = RequestAcceptance(server)
    for number in range(6000):
        request.observe([0.05], number % 4 == 0)
        request.observe([5.0], number % 100 != 0)
    assert request.rate(0.05) == pytest.approx(0.25, abs=0.06)
    assert request.rate(5.0) == pytest.approx(0.99, abs=0.05)
    assert server.shares[0] == pytest.approx(0.5, abs=0.05) and server.shares.sum() == pytest.approx(1.0)


def test_texts_that_do_not_suit_the_draft_leave_what_margins_tell_as_it_was() -> None:
    server = common()
    before = server.rates.copy()
    for _ in range(50):
        hopeless = RequestAcceptance(server)
        for _ in range(40):
            hopeless.observe([0.3], 0)
    assert server.rates[2] > 0.6 * before[2]
    # A new request begins like the latest ones, and is soon told apart.
    request = RequestAcceptance(server)
    assert request.factor < 0.2
    for _ in range(5):
        request.observe([0.3, 0.3], 2)
    assert request.factor > 0.7


@pytest.mark.parametrize("seed", range(20))
def test_the_margin_is_the_gap_to_the_next_best_with_the_noise(seed: int) -> None:
    scores = np.random.default_rng(seed).standard_normal(64) * 2
    words = words_at(seed, NoiseStream.SHARED, 3, 64)
    sums = np.sort(scores + gumbel(words))
    token_id, margin = draw_with_margin(scores, seed, NoiseStream.SHARED, 3)
    assert token_id == draw_token(scores, seed, NoiseStream.SHARED, 3)
    assert margin == pytest.approx(min(sums[-1] - sums[-2], MAX_MARGIN))


def test_a_token_without_rival_has_the_largest_margin() -> None:
    assert margin_of(np.array([1.0, -np.inf])) == MAX_MARGIN == margin_of(np.array([1.0]))
