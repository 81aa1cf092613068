"""Tests of the counts behind `make acceptance`, their intervals, and the command around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.bench.calibration import quantizations
from pipelines.bench.calibration.pair_acceptance import (
    acceptance_rate,
    answer_prompts,
    interval,
    mean_acceptance_length,
    same_choices,
)
from pipelines.command_line.general_prompts import general_prompts
from pipelines.errors import EngineFailedError
from pipelines.executor.engine import Engine
from pipelines.manifest import EngineFiles
from tests.support.recording_engine import RecordingEngine, make_executor
from tests.support.tiny_engines import build_tiny_pair

PROMPTS = [np.array([3, 1 + number, 4], np.int32) for number in range(5)]


def counts(*rows: tuple[int, int, int]) -> Any:
    return np.array(rows, np.int64)


def test_rates_by_hand() -> None:
    found = counts((3, 8, 2), (1, 4, 1))
    assert acceptance_rate(found) == 4 / 12
    assert mean_acceptance_length(found) == 1 + 4 / 3
    assert np.isnan(acceptance_rate(counts((0, 0, 0))))
    assert np.isnan(mean_acceptance_length(counts((0, 0, 0))))


def test_the_interval_holds_the_rate_and_narrows_with_more_prompts() -> None:
    rng = np.random.default_rng(4)

    def prompts(number: int) -> Any:
        accepted = rng.binomial(60, 0.6, number)
        return np.stack([accepted, np.full(number, 60), np.full(number, 20)], axis=1)

    few, many = prompts(10), prompts(1000)
    low, high = interval(many, acceptance_rate)
    assert low < acceptance_rate(many) < high
    assert low < 0.6 < high
    wide_low, wide_high = interval(few, acceptance_rate)
    assert wide_high - wide_low > 3 * (high - low)


def test_the_interval_covers_as_often_as_it_says() -> None:
    """200 sets of prompts with different rates: the tokens of one answer are not independent trials."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        accepted = rng.binomial(60, rng.beta(6, 4, 40))
        found = np.stack([accepted, np.full(40, 60), np.full(40, 20)], axis=1)
        low, high = interval(found, acceptance_rate)
        covered += low < 0.6 < high
    assert 178 <= covered <= 199


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_that_agrees_is_accepted(temperature: float) -> None:
    def pair(agreement: int) -> Any:
        draft = make_executor(RecordingEngine(256, salt=1, agreement=agreement, role="draft"))
        return answer_prompts(
            draft,
            make_executor(RecordingEngine(256)),
            PROMPTS,
            num_draft_tokens=3,
            max_tokens=20,
            temperature=temperature,
        )

    same, other = pair(16), pair(4)
    assert same.acceptance_rate == 1
    assert same.mean_acceptance_length > 3
    assert other.acceptance_rate < 0.5
    for mine, theirs in zip(same.token_ids, other.token_ids, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_step_of_the_draft_that_fails_is_no_measurement() -> None:
    engine = RecordingEngine(256, salt=1, agreement=16, role="draft")
    engine.fail_next = True
    draft = make_executor(engine)
    target = make_executor(RecordingEngine(256))
    with pytest.raises(EngineFailedError, match="engine 'draft'"):
        answer_prompts(draft, target, PROMPTS, num_draft_tokens=3, max_tokens=20, temperature=0.0)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("variants")
    found: dict[str, Any] = {"recipe": "tiny", "draft": {}, "target": {}}
    for quantization in ("none", "int8"):
        draft, target = build_tiny_pair(folder / quantization, quantization=quantization)
        found["draft"][quantization], found["target"][quantization] = str(draft), str(target)
    return found


OPTIONS = ["--num-prompts", "4", "--max-tokens", "24"]


def test_the_command_measures_every_pair(
    engines: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantizations, "build_recipe", lambda module, recipe, report: engines)
    assert quantizations.main(OPTIONS) == 0
    *progress, last = capsys.readouterr().out.splitlines()
    document = json.loads(last)
    prompts = document["conditions"]["prompts"]
    assert (prompts["source"], prompts["num_prompts"]) == ("engines/demo_pair/prompts", 4)
    assert prompts["sets"] == {"code": 4} and prompts["num_tokens"] > 4 * 16
    assert sum(line.startswith("temperature ") for line in progress) == 2 * 4 == len(document["pairs"])
    for pair in document["pairs"]:
        low, high = pair["acceptance_rate_interval"]
        assert 0 <= low <= pair["acceptance_rate"] <= high <= 1
        low, high = pair["mean_acceptance_length_interval"]
        assert 1 <= low <= pair["mean_acceptance_length"] <= high <= 5
        assert pair["total_draft_tokens"] > 0
        low, high = pair["acceptance_rate_change_interval"]
        assert low <= pair["acceptance_rate_change"] <= high
        is_unquantized = pair["draft"] == pair["target"] == "none"
        assert ((low, high) == (0, 0)) == is_unquantized
    agreement = {entry["target"]: entry for entry in document["agreement"]}
    assert agreement["none"]["same_argmax"] == 1 and agreement["none"]["positions"] <= 4 * 24
    assert 0.5 < agreement["int8"]["same_argmax"] <= 1
    assert document["conditions"]["recipe"] == "tiny" and document["conditions"]["engines"]["draft none"]
    assert (document["num_prompts"], document["num_draft_tokens"]) == (4, 4)


def test_an_unlike_target_agrees_less(engines: dict[str, Any], tmp_path: Path) -> None:
    _, other = build_tiny_pair(tmp_path, seed=9, quantization="none")
    loaded = {
        "none": Engine(EngineFiles(Path(engines["target"]["none"])), 8),
        "other": Engine(EngineFiles(other), 8),
    }
    texts = [np.arange(5, 45, dtype=np.int32)]
    found = same_choices(loaded, "none", PROMPTS[:1], texts)
    assert found["none"].tolist() == [[40, 40]]
    assert found["other"][0, 0] < 5


@pytest.mark.parametrize("change", ["engine", "prompts"])
def test_what_cannot_be_loaded_is_an_error(
    change: str, engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = json.loads(json.dumps(engines))
    if change == "engine":
        changed["draft"]["int8"] += "-absent"
    monkeypatch.setattr(quantizations, "build_recipe", lambda module, recipe, report: changed)
    options = [*OPTIONS, "--prompts", "absent.jsonl"] if change == "prompts" else OPTIONS
    assert quantizations.main(options) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and "Traceback" not in captured.err


def test_an_output_that_depends_on_the_draft_is_no_prediction(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = quantizations.answer_prompts
    number = 0

    def faulty(*arguments: Any, **named: Any) -> Any:
        nonlocal number
        number += 1
        answers = original(*arguments, **named)
        if number == 2:
            answers.token_ids[3][5] += 1
        return answers

    monkeypatch.setattr(quantizations, "answer_prompts", faulty)
    with pytest.raises(EngineFailedError, match="depends on the draft") as caught:
        quantizations.measure(engines, general_prompts().draw(4), 3, 24)
    assert "prompts [3]" in caught.value.values
