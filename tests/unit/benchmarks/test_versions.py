"""Tests of the comparison of versions: it finds a difference, and no difference in noise."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import median_interval
from benchmarks.versions.figures import Change, figures_of, front_doors_share, table
from benchmarks.versions.pairs import GRPC, OPENAI, SETTINGS, Pair
from benchmarks.versions.version import Version
from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import ADAPTIVE, Cell
from pipelines.bench.prompt_sets import PromptSet
from pipelines.errors import VerificationError
from tests.conftest import REPOSITORY_ROOT
from tests.unit.bench.answers import answer


def batch(wall_s: float, ttft_s: float | None) -> Measurement:
    cell = Cell(PromptSet("code", ()), SETTINGS[0].load)
    return Measurement(cell, ADAPTIVE, 0, (answer(ttft=ttft_s, e2e=wall_s),), wall_s)


def test_a_machine_that_slows_down_tenfold_hides_nothing() -> None:
    pairs = [
        Pair(batch(slowness, 0.010 * slowness), batch(1.25 * slowness, 0.010 * slowness + 0.002))
        for slowness in np.linspace(1, 10, 30).tolist()
    ]
    (figures,) = figures_of({SETTINGS[0]: pairs})
    ratio, ttft_ms = figures.tokens_per_s_ratio, figures.ttft_ms_difference
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((0.8, 0.8, 0.8))
    assert (ttft_ms.low, ttft_ms.value, ttft_ms.high) == pytest.approx((2.0, 2.0, 2.0))
    assert (figures.protocol, figures.num_at_once, figures.num_pairs) == (GRPC, 1, 30)


def test_the_interval_contains_the_true_median_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    intervals = [median_interval(rng.lognormal(sigma=0.3, size=30).tolist()) for _ in range(200)]
    assert 0.90 <= np.mean([each.low <= 1.0 <= each.high for each in intervals]) <= 0.99
    assert np.median([each.high - each.low for each in intervals]) < 0.35


def test_the_front_doors_share_is_what_openais_api_adds_in_each_version() -> None:
    ttft_s = {GRPC: (0.010, 0.010), OPENAI: (0.014, 0.011)}
    pairs = {
        setting: [Pair(*(batch(1.0, each) for each in ttft_s[setting.protocol]))] * 2 for setting in SETTINGS
    }
    share = front_doors_share(pairs)
    assert share.before == pytest.approx(4.0)
    assert share.difference.value == pytest.approx(-3.0)
    starts = Change.of([(2.0, 2.5), (8.0, 8.5), (4.0, 4.5)])
    assert (starts.num_pairs, starts.before, starts.difference.value) == (3, 4.0, 0.5)
    text = table(figures_of(pairs), share, starts)
    assert "| OpenAI | 8 | 5.0 | 1.000 (1.000 to 1.000) | 14.00 | -3.00 (-3.00 to -3.00) |" in text
    assert "first token, ms: 4.00 before, after - before -3.00 (-3.00 to -3.00)" in text
    assert "too narrow" in text
    assert "too narrow" not in table([], share, Change.of([(2.0, 2.5)] * 6))


def test_the_checkout_is_copied_as_it_is_and_a_commit_as_it_was(tmp_path: Path) -> None:
    checkout = Version.of_checkout(tmp_path / "after", "demo").tree
    assert (checkout / "Makefile").read_bytes() == (REPOSITORY_ROOT / "Makefile").read_bytes()
    assert not (checkout / ".venv").exists()
    commit = Version.of_commit("HEAD", tmp_path / "before", "demo").tree
    shown = subprocess.run(
        ["git", "show", "HEAD:Makefile"], cwd=REPOSITORY_ROOT, capture_output=True, check=True
    )
    assert (commit / "Makefile").read_bytes() == shown.stdout


def test_a_version_whose_program_fails_is_named_with_the_end_of_its_error(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match=r"commit abc failed.*build\.engines.*No module named"):
        Version("commit abc", tmp_path, "demo").build(tmp_path / "none")
