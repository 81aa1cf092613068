"""Tests of what benchmarks share: a copy of the checkout, and intervals of medians."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.checkout import CheckoutCopy
from benchmarks.harness import median_interval
from pipelines.errors import VerificationError
from tests.conftest import REPOSITORY_ROOT


def test_the_interval_contains_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    intervals = [median_interval(rng.lognormal(sigma=0.3, size=30).tolist()) for _ in range(200)]
    assert 0.90 <= np.mean([each.low <= 1.0 <= each.high for each in intervals]) <= 0.99
    assert np.median([each.high - each.low for each in intervals]) < 0.35


def test_the_checkout_is_copied_as_it_is(tmp_path: Path) -> None:
    tree = CheckoutCopy.make(tmp_path / "copy", "demo").tree
    assert (tree / "Makefile").read_bytes() == (REPOSITORY_ROOT / "Makefile").read_bytes()
    assert not (tree / ".venv").exists()


def test_a_program_that_fails_is_named_with_the_end_of_its_error(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"failed: build\.repository.*No module named"):
        CheckoutCopy(tmp_path, "no-such-recipe").build()
