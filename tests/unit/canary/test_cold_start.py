"""Tests of the cold-start probes of a new pair, and of the replica and reason that a failure names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.canary.checks import cold_start as probing
from pipelines.canary.checks.cold_start import ColdStart, cold_start
from pipelines.canary.judge.limits import Limit, Limits
from pipelines.client.models import ModelSpec, Tensors
from pipelines.command_line.prompts import Prompt
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import CanaryError, ChatTemplateError, EngineFailedError
from tests.support.tiny_engines import TINY_CALIBRATION, write_template, write_tokenizer
from tests.unit.canary.requests import LIMITS

BASELINE = AcceptanceBaseline(
    num_draft_tokens=4,
    max_tokens=8,
    prompts=tuple(BaselinePrompt(name, (5, 9, number)) for number, name in enumerate(("one", "two"))),
    num_rounds=10,
    total_draft_tokens=40,
    accepted_per_position=(8, 6, 4, 2),
)
URL = "grpc://127.0.0.1:1"
KEY = "of the server"


@pytest.fixture
def pair(tmp_path: Path) -> PairRecord:
    write_tokenizer(tmp_path / "tokenizer.json")
    calibration = tmp_path / "calibration.json"
    TINY_CALIBRATION.write(calibration)
    BASELINE.add_to(calibration)
    return PairRecord(
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
        draft_digest="d",
        target_engine_dir=str(tmp_path),
        target_fingerprint="t",
        target_digest="t",
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
    """A client that answers each probe with these counts: rounds, drafted, accepted by position."""

    def __init__(self, counts: tuple[int, int, tuple[int, ...]] | None) -> None:
        self.counts = counts
        self.num_asked = 0

    def connect(self, url: str, timeouts: object, key: str) -> Any:
        assert (url, key) == (URL, KEY)
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
    pair: PairRecord,
    counts: tuple[int, int, tuple[int, ...]] | None,
    by: Limits = LIMITS,
    recipe: str = "demo",
) -> ColdStart:
    answering = Answering(counts)
    monkeypatch.setattr(probing, "connect_to_models", answering.connect)
    found = cold_start(URL, KEY, pair, recipe, by)
    json.dumps(found.evidence, allow_nan=False)
    assert found.probe.failure or answering.num_asked == len(found.evidence["prompts"])
    return found


AS_MEASURED = (5, 20, (4, 3, 2, 1))  # of each of two prompts


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
        ((0, 0, ()), "answer has no counts"),
    ],
)
def test_a_bad_pair_is_refused_immediately(
    monkeypatch: pytest.MonkeyPatch,
    pair: PairRecord,
    counts: tuple[int, int, tuple[int, ...]] | None,
    reason: str,
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
def test_regressions_are_judged_by_their_limits_alone(
    monkeypatch: pytest.MonkeyPatch, pair: PairRecord, accepted: tuple[int, ...], verdict: str, reason: str
) -> None:
    """A single one of 500 rounds decides, because the same engines always give the same counts."""
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


def test_the_limits_are_those_of_the_rollout(monkeypatch: pytest.MonkeyPatch, pair: PairRecord) -> None:
    less = (50, 200, (36, 27, 18, 9))
    for limit, verdict in ((Limit(0.2, 0.3), "pass"), (Limit(0.05, 0.08), "fail"), (Limit(0.1, 0.1), "pass")):
        by = dataclasses.replace(LIMITS, manifest=limit, survival_positions=1)
        found = probed(monkeypatch, pair, less, by)
        assert found.verdict == verdict
        assert len(found.evidence["losses"]) == 3


def test_a_position_that_nothing_reached_cannot_lose(
    monkeypatch: pytest.MonkeyPatch, pair: PairRecord
) -> None:
    dataclasses.replace(BASELINE, accepted_per_position=(20, 0, 0, 0), num_rounds=20).add_to(
        Path(pair.calibration_file)
    )
    found = probed(monkeypatch, pair, (10, 20, (10, 0, 0, 0)))
    assert found.verdict == "pass"
    assert [loss["name"] for loss in found.evidence["losses"]][2:] == ["survival/1"]


@pytest.mark.parametrize("calibration", ["", "older"])
def test_a_pair_that_was_not_measured_is_asked_prompts_of_its_recipe(
    monkeypatch: pytest.MonkeyPatch, pair: PairRecord, calibration: str, tmp_path: Path
) -> None:
    if calibration:
        TINY_CALIBRATION.write(Path(pair.calibration_file))
    else:
        pair = dataclasses.replace(pair, calibration_file="")
    texts = [f"question {number}" for number in range(40)]
    (tmp_path / "mine.txt").write_text("\n---\n".join(texts))
    (tmp_path / "own.yaml").write_text("name: own\nprompts: mine.txt\n")
    found = probed(monkeypatch, pair, AS_MEASURED, recipe=str(tmp_path / "own.yaml"))
    assert found.verdict == "pass"
    assert found.evidence["baseline"] is None
    assert len(found.evidence["prompts"]) == 8
    judged = {f"mine-{i:04d}" for i, text in enumerate(texts, 1) if not Prompt("", text).is_for_calibration}
    assert set(found.evidence["prompts"]) <= judged
    assert probed(monkeypatch, pair, (10, 40, (0, 0, 0, 0))).verdict == "fail"


def test_conversations_of_a_recipe_are_asked_in_the_targets_template(
    monkeypatch: pytest.MonkeyPatch, pair: PairRecord, tmp_path: Path
) -> None:
    pair = dataclasses.replace(pair, calibration_file="")
    lines = [{"messages": [{"role": "user", "content": f"question {number} " * 80}]} for number in range(40)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    recipe = tmp_path / "own.yaml"
    recipe.write_text("name: own\nprompts: mine.jsonl\n")
    with pytest.raises(ChatTemplateError, match="no chat template for prompts of messages"):
        cold_start(URL, KEY, pair, str(recipe), LIMITS)
    write_template(tmp_path)
    asked: list[BaselinePrompt] = []
    inputs = probing._inputs
    monkeypatch.setattr(probing, "_inputs", lambda each, *rest: asked.append(each) or inputs(each, *rest))
    assert probed(monkeypatch, pair, AS_MEASURED, recipe=str(recipe)).verdict == "pass"
    assert len(asked) == 8
    assert {(len(each.input_ids), each.input_ids[-1]) for each in asked} == {(64, 0)}


def test_a_lower_ceiling_is_kept_and_then_not_compared(
    monkeypatch: pytest.MonkeyPatch, pair: PairRecord
) -> None:
    found = probed(monkeypatch, dataclasses.replace(pair, max_draft_len=2), (20, 40, (4, 1)))
    assert found.evidence["num_draft_tokens"] == 2
    assert found.evidence["baseline"] is None
    assert found.verdict == "pass"


def test_a_pair_that_cannot_draft_is_an_error(pair: PairRecord) -> None:
    with pytest.raises(CanaryError, match=r"cannot be probed; .*; .*; roll out a pair whose max_draft_len"):
        cold_start(URL, KEY, dataclasses.replace(pair, max_draft_len=0), "demo", LIMITS)
