"""Tests of how benchmarks of quality compare predictions."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality.predictions import Greedy, beside


def test_predictions_are_compared_by_hand() -> None:
    first, second = np.log(np.array([[[1, 1]] * 3, [[3, 1]] * 3], np.float32))
    found = beside([first], [second], [[0, 0, 1]])  # one token that it expects more, and one less
    assert found.perplexity_ratio.value == pytest.approx((0.5 / 0.75 * 0.5 / 0.25) ** 0.5)
    assert found.kl == pytest.approx(0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25), rel=1e-6)
    assert found.same_argmax == 1
    assert beside([first], [first], [[0, 0, 1]]).kl == 0


def test_greedy_texts_part_where_a_gap_is_known() -> None:
    def model(turn: int) -> Greedy:
        def logits(ids: list[int], start: int) -> np.ndarray:
            best = 1 if start + len(ids) == turn else 0
            return np.eye(3, dtype=np.float32)[[best]] * (0.25 if best else 2)

        return Greedy.of(logits, [5, 5])

    parted = model(7).first_difference(model(0))
    assert parted == {"position": 5, "gap": 0.25, "reference_gap": 2}
    assert model(7).first_difference(model(7)) is None
