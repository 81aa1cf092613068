"""What probes of a new pair show, and which replica fails for which reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary import cold_start as probing
from pipelines.canary.analysis.limits import Limit, Limits
from pipelines.canary.baseline_losses import probes_section
from pipelines.canary.candidate import Pair
from pipelines.canary.cold_start import ColdStart, cold_start
from pipelines.client.any_model import ModelSpec, Tensors
from pipelines.errors import CanaryError, EngineFailedError
from tests.tiny_engines import TINY_CALIBRATION, write_tokenizer
from tests.unit.canary_requests import LIMITS

BASELINE = AcceptanceBaseline(
    num_draft_tokens=4,
    max_tokens=8,
    prompts=tuple(BaselinePrompt(name, (5, 9, number)) for number, name in enumerate(("one", "two"))),
    num_rounds=10,
    total_draft_tokens=40,
    accepted_per_position=(8, 6, 4, 2),
)
URL = "grpc://127.0.0.1:1"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    write_tokenizer(tmp_path / "tokenizer.json")
    calibration = tmp_path / "calibration.json"
    TINY_CALIBRATION.write(calibration)
    BASELINE.add_to(calibration)
    return Pair(
        name="other",
        fingerprint="0" * 64,
        runtime="embedded",
        speculative_model="speculative_00000000",
        control_model="target",
        models=("speculative_00000000",),
        socket="s",
        control_socket="t",
        draft_engine_dir="d",
        draft_fingerprint="d",
        target_engine_dir=str(tmp_path),
        target_fingerprint="t",
        max_draft_len=8,
        num_draft_tokens="adaptive",
        draft_length_file="f",
        calibration_file=str(calibration),
        num_kv_blocks={},
        gpu_bytes={},
        gpu_usable_bytes=0,
        loads_at_start=False,
    )


class Answering:
    """Answers each probe with these counts: rounds, drafted, accepted by position."""

    def __init__(self, counts: tuple[int, int, tuple[int, ...]] | None) -> None:
        self.counts = counts
        self.num_asked = 0

    def connect(self, url: str, timeouts: object) -> Any:
        assert url == URL
        answering = self

        class Calls:
            def describe(self, model: str) -> ModelSpec:
                assert model == "speculative_00000000"
                return ModelSpec(model, {}, {}, has_batch_dimension=True, is_decoupled=True)

            def infer(self, model: ModelSpec, inputs: Tensors) -> list[Tensors]:
                answering.num_asked += 1
                if answering.counts is None:
                    raise EngineFailedError("the device is gone")
                rounds, drafted, accepted = answering.counts
                if not rounds:
                    return []
                return [
                    {
                        "num_rounds": np.array([[rounds]]),
                        "total_draft_tokens": np.array([[drafted]]),
                        "accepted_per_position": np.array([[*accepted, 0, 0, 0, 0]]),
                    }
                ]

            def close(self) -> None:
                pass

        return Calls()


def probed(
    monkeypatch: pytest.MonkeyPatch,
    pair: Pair,
    counts: tuple[int, int, tuple[int, ...]] | None,
    by: Limits = LIMITS,
) -> ColdStart:
    answering = Answering(counts)
    monkeypatch.setattr(probing, "connect_to_models", answering.connect)
    found = cold_start(URL, pair, by)
    json.dumps(found.evidence, allow_nan=False)
    assert found.probe.failure or answering.num_asked == len(found.evidence["prompts"])
    return found


AS_MEASURED = (5, 20, (4, 3, 2, 1))  # of each of two prompts


def test_a_pair_that_is_as_it_was_measured_goes_on(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    found = probed(monkeypatch, pair, AS_MEASURED)
    assert (found.verdict, found.reason) == ("pass", "mean acceptance length 3.00")
    assert (found.probe.acceptance_rate, found.probe.mean_acceptance_length) == (0.5, 3.0)
    assert found.evidence["baseline"] == {"acceptance_rate": 0.5, "mean_acceptance_length": 3.0}
    assert found.evidence["prompts"] == ["one", "two"]
    assert found.evidence["num_draft_tokens"] == 4


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ((10, 40, (0, 0, 0, 0)), "mean acceptance length is 1.000, near 1"),
        ((100, 400, (9, 0, 0, 0)), "mean acceptance length is 1.090, near 1"),
        ((100, 0, (0, 0, 0, 0)), "its draft proposes nothing"),
        ((5, 20, (4, 3, 1, 0)), "acceptance_rate 0.400, 0.500 at the build (20.0% less)"),
        ((5, 20, (4, 2, 2, 2)), "survival/2 0.400, 0.600 at the build (33.3% less)"),  # the rate is as it was
        ((7, 20, (4, 3, 2, 1)), "acceptance_length 2.429, 3.000 at the build (19.0% less); survival/1"),
        (None, "it does not answer: the device is gone"),
        ((0, 0, ()), "no answer with counts"),
    ],
)
def test_a_bad_one_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, counts: tuple[int, int, tuple[int, ...]] | None, reason: str
) -> None:
    found = probed(monkeypatch, pair, counts)
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
def test_what_is_lost_holds_or_fails_by_its_limits_and_by_no_chance(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, accepted: tuple[int, ...], verdict: str, reason: str
) -> None:
    """Of 500 rounds a single one decides: the counts of the same engines are the same."""
    found = probed(monkeypatch, pair, (500, 2000, accepted))
    assert (found.verdict, reason in found.reason) == (verdict, True), found.reason
    losses = {loss["name"]: loss for loss in found.evidence["losses"]}
    assert list(losses) == [
        *("acceptance_rate", "acceptance_length", "survival/1", "survival/2", "survival/3")
    ]
    assert losses["acceptance_rate"]["at_build"] == 0.5
    assert losses["acceptance_rate"]["now"] == sum(accepted) / 2000
    assert losses["survival/1"]["drop"] == pytest.approx(1 - accepted[0] / 400)
    assert found.evidence["limits"]["drop_holds_above"] == 0.05
    assert found.evidence["limits"]["drop_fails_above"] == 0.15


def test_the_worst_loss_counts(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """The rate is held, the first position fails."""
    found = probed(monkeypatch, pair, (500, 2000, (339, 300, 200, 90)))
    assert [loss["verdict"] for loss in found.evidence["losses"]][:3] == ["held", "pass", "fail"]
    assert (found.verdict, found.reason) == ("fail", "survival/1 0.678, 0.800 at the build (15.2% less)")


def test_the_limits_are_those_of_the_rollout(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    less = (50, 200, (36, 27, 18, 9))
    for limit, verdict in ((Limit(0.2, 0.3), "pass"), (Limit(0.05, 0.08), "fail"), (Limit(0.1, 0.1), "pass")):
        by = dataclasses.replace(LIMITS, manifest=limit, survival_positions=1)
        found = probed(monkeypatch, pair, less, by)
        assert found.verdict == verdict
        assert len(found.evidence["losses"]) == 3


def test_a_position_that_nothing_reached_cannot_lose(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    dataclasses.replace(BASELINE, accepted_per_position=(20, 0, 0, 0), num_rounds=20).add_to(
        Path(pair.calibration_file)
    )
    found = probed(monkeypatch, pair, (10, 20, (10, 0, 0, 0)))
    assert found.verdict == "pass"
    assert [loss["name"] for loss in found.evidence["losses"]][2:] == ["survival/1"]


def test_the_report_has_what_the_state_file_has(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    found = probed(monkeypatch, pair, (50, 200, (36, 27, 18, 9)))
    section = probes_section(json.loads(json.dumps(found.evidence)))
    assert section.verdict == "inconclusive"
    assert section.table is not None
    rows = [row for row in section.table.rows if row[0] == "acceptance_rate"]
    assert rows == [("acceptance_rate", "held", "0.5000", "0.4500", "+10.00%", "+5.00%", "+15.00%")]
    assert section.document["losses"][0]["verdict"] == "held"


@pytest.mark.parametrize("calibration", ["", "older"])
def test_a_pair_that_was_not_measured_is_asked_held_out_text(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, calibration: str
) -> None:
    if calibration:
        TINY_CALIBRATION.write(Path(pair.calibration_file))
    else:
        pair = dataclasses.replace(pair, calibration_file="")
    found = probed(monkeypatch, pair, AS_MEASURED)
    assert found.verdict == "pass"
    assert found.evidence["baseline"] is None
    assert len(found.evidence["prompts"]) == 8
    assert probed(monkeypatch, pair, (10, 40, (0, 0, 0, 0))).verdict == "fail"


def test_a_lower_ceiling_is_kept_and_then_not_compared(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    found = probed(monkeypatch, dataclasses.replace(pair, max_draft_len=2), (20, 40, (4, 1)))
    assert found.evidence["num_draft_tokens"] == 2
    assert found.evidence["baseline"] is None
    assert found.verdict == "pass"


def test_a_pair_that_cannot_draft_is_an_error(pair: Pair) -> None:
    with pytest.raises(CanaryError, match=r"cannot be probed; .*; .*; roll out a pair that drafts"):
        cold_start(URL, dataclasses.replace(pair, max_draft_len=0), LIMITS)
