"""Tests of the cold-start probes of a new pair; ``tests/integration/test_cold_start.py`` probes real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary.checks.cold_start import ColdStart, cold_start
from pipelines.canary.judge.limits import Limit, Limits
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import EngineFailedError
from tests.support.tiny_engines import TINY_CALIBRATION
from tests.unit.canary.conftest import Render
from tests.unit.canary.requests import LIMITS

BASELINE = AcceptanceBaseline(
    num_draft_tokens=4,
    max_tokens=8,
    prompts=tuple(BaselinePrompt(name, (5, 9, number)) for number, name in enumerate(("one", "two"))),
    num_rounds=10,
    total_draft_tokens=40,
    accepted_per_position=(8, 6, 4, 2),
)

Counts = tuple[int, int, tuple[int, ...]]
"""Rounds, drafted tokens, and accepted ones by position, of each answer."""


@pytest.fixture
def pair(rendered: Render, tmp_path: Path) -> PairRecord:
    calibration = tmp_path / "calibration.json"
    TINY_CALIBRATION.write(calibration)
    BASELINE.add_to(calibration)
    return replace(rendered().pair, calibration_file=str(calibration))


class Probes:
    """Probes a pair whose server answers with chosen counts; None for a server that fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []
        self._counts: Counts | None = None

    def __call__(self, pair: PairRecord, counts: Counts | None, by: Limits = LIMITS) -> ColdStart:
        self.asked, self._counts = [], counts
        found = cold_start(self, pair, by)  # type: ignore[arg-type]
        json.dumps(found.evidence, allow_nan=False)
        assert counts is None or len(self.asked) == len(found.evidence["prompts"])
        return found

    def generate(self, model: str, inputs: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        self.asked.append(inputs["input_ids"])
        if self._counts is None:
            raise EngineFailedError("the device is gone")
        rounds, drafted, accepted = self._counts
        counts = {"num_rounds": rounds, "total_draft_tokens": drafted}
        return {**counts, "accepted_per_position": [*accepted, 0, 0, 0, 0]}


@pytest.fixture
def probed() -> Probes:
    return Probes()


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((10, 40, (0, 0, 0, 0)), "mean acceptance length is 1.000, below 1.1"),
        ((100, 400, (9, 0, 0, 0)), "mean acceptance length is 1.090, below 1.1"),
        ((100, 0, (0, 0, 0, 0)), "the draft proposes no tokens"),
        ((5, 20, (4, 3, 1, 0)), "acceptance_rate 0.400, 0.500 at the build (20.0% less)"),
        ((5, 20, (4, 2, 2, 2)), "survival/2 0.400, 0.600 at the build (33.3% less)"),  # the rate is unchanged
        ((7, 20, (4, 3, 2, 1)), "acceptance_length 2.429, 3.000 at the build (19.0% less); survival/1"),
        (None, "the candidate does not answer: the device is gone"),
    ],
)
def test_a_bad_pair_is_refused_immediately(
    counts: Counts | None, reason: str, pair: PairRecord, probed: Probes
) -> None:
    found = probed(pair, counts)
    assert found.verdict == "fail"
    assert reason in found.reason


@pytest.mark.parametrize(
    ("accepted", "verdict", "reason"),
    [
        ((400, 300, 200, 100), "pass", "mean acceptance length 3.00"),
        ((450, 350, 250, 150), "pass", "mean acceptance length 3.40"),  # better than it was
        ((380, 285, 190, 95), "pass", "mean acceptance length 2.90"),  # 5 % less, and not more
        ((379, 285, 190, 96), "held", "survival/1 0.758, 0.800 at the build (5.2% less)"),
        ((400, 300, 189, 100), "held", "survival/3 0.378, 0.400 at the build (5.5% less)"),
        ((400, 300, 200, 50), "pass", "mean acceptance length 2.90"),  # of the fourth only the rate says much
        ((400, 300, 200, 48), "held", "acceptance_rate 0.474, 0.500 at the build (5.2% less)"),
        ((340, 255, 170, 85), "held", "acceptance_rate 0.425, 0.500 at the build (15.0% less)"),
        ((339, 255, 170, 85), "fail", "survival/1 0.678, 0.800 at the build (15.2% less)"),
    ],
)
def test_regressions_are_judged_by_their_limits_alone(
    accepted: tuple[int, ...], verdict: str, reason: str, pair: PairRecord, probed: Probes
) -> None:
    """A single one of 500 rounds decides, because the same engines always give the same counts."""
    found = probed(pair, (500, 2000, accepted))
    assert (found.verdict, reason in found.reason) == (verdict, True), found.reason
    losses = {loss["name"]: loss for loss in found.evidence["losses"]}
    assert list(losses) == ["acceptance_rate", "acceptance_length", *(f"survival/{n}" for n in (1, 2, 3))]
    assert losses["acceptance_rate"]["at_build"] == 0.5
    assert losses["acceptance_rate"]["now"] == sum(accepted) / 2000
    assert losses["survival/1"]["drop"] == pytest.approx(1 - accepted[0] / 400)
    limits = found.evidence["limits"]
    assert (limits["drop_holds_above"], limits["drop_fails_above"]) == (0.05, 0.15)


@pytest.mark.parametrize(
    ("limit", "verdict"), [(Limit(0.2, 0.3), "pass"), (Limit(0.05, 0.08), "fail"), (Limit(0.1, 0.1), "pass")]
)
def test_the_limits_are_those_of_the_rollout(
    limit: Limit[float], verdict: str, pair: PairRecord, probed: Probes
) -> None:
    by = replace(LIMITS, manifest=limit, survival_positions=1)
    found = probed(pair, (50, 200, (36, 27, 18, 9)), by)
    assert (found.verdict, len(found.evidence["losses"])) == (verdict, 3)


def test_what_was_never_reached_or_asked_for_cannot_be_compared(pair: PairRecord, probed: Probes) -> None:
    lower = probed(replace(pair, max_draft_len=2), (20, 40, (4, 1)))
    assert (lower.verdict, lower.evidence["num_draft_tokens"], lower.evidence["baseline"]) == (
        "pass",
        2,
        None,
    )
    replace(BASELINE, accepted_per_position=(20, 0, 0, 0), num_rounds=20).add_to(Path(pair.calibration_file))
    found = probed(pair, (10, 20, (10, 0, 0, 0)))
    assert [loss["name"] for loss in found.evidence["losses"]][2:] == ["survival/1"]
