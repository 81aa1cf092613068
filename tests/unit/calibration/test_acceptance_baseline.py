"""Tests of a pair's measured acceptance in its calibration file; impossible values are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from build.rendering.rendered_pair import calibration_file
from pipelines.bench.calibration.__main__ import main
from pipelines.bench.calibration.prompts import calibration_prompts
from pipelines.bench.reporting.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.command_line.general_prompts import GENERAL
from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompt
from pipelines.errors import EngineLoadError
from pipelines.speculation.draft_length.calibration import Calibration
from tests.support.tiny_engines import TINY_CALIBRATION, build_tiny_pair, write_template

BASELINE = AcceptanceBaseline(
    num_draft_tokens=3,
    max_tokens=8,
    prompts=(BaselinePrompt("one", (5, 9)), BaselinePrompt("two", (7,))),
    num_rounds=10,
    total_draft_tokens=24,
    accepted_per_position=(6, 4, 2),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    TINY_CALIBRATION.write(tmp_path / "calibration.json")
    return tmp_path / "calibration.json"


def test_it_stands_beside_what_the_loop_reads(path: Path) -> None:
    with pytest.raises(EngineLoadError, match="baseline of the pair cannot be used"):
        AcceptanceBaseline.read(path)
    BASELINE.add_to(path)
    assert AcceptanceBaseline.read(path) == BASELINE
    assert Calibration.read(path) == TINY_CALIBRATION
    written = json.loads(path.read_text())["baseline"]
    assert (written["acceptance_rate"], written["mean_acceptance_length"]) == (0.5, 2.2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompts", []),
        ("prompts", [{"name": "one", "input_ids": []}]),
        ("num_rounds", -1),
        ("num_rounds", 5),
        ("total_draft_tokens", 11),
        ("accepted_per_position", [6, 4]),
        ("accepted_per_position", [4, 6, 2]),
        ("num_draft_tokens", 0),
    ],
)
def test_what_no_measurement_gives_is_refused(path: Path, key: str, value: Any) -> None:
    BASELINE.add_to(path)
    document = json.loads(path.read_text())
    document["baseline"][key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(EngineLoadError, match=r"baseline of the pair cannot be used; .*; .*; delete it"):
        AcceptanceBaseline.read(path)


@pytest.mark.parametrize("text", [None, "", "[]"])
def test_a_file_that_is_no_calibration_is_named(path: Path, text: str | None) -> None:
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(EngineLoadError, match=r"calibration\.json"):
        AcceptanceBaseline.read(path)
    with pytest.raises(EngineLoadError, match=r"calibration\.json"):
        BASELINE.add_to(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_tiny_pair(tmp_path_factory.mktemp("engines"), draft="noisy", num_threads=1)


def measure(pair: tuple[Path, Path], output: Path, *options: str) -> int:
    draft, target = map(str, pair)
    return main(["--draft", draft, "--target", target, "--output", str(output), "--max-rows", "8", *options])


def test_an_older_calibration_keeps_its_costs_and_gets_what_it_lacks(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "calibration.json"
    shutil.copyfile(calibration_file(*pair), output)
    monkeypatch.setattr(f"{main.__module__}.measure_step_costs", None)
    assert measure(pair, output) == 0
    baseline = AcceptanceBaseline.read(output)
    calibration = Calibration.read(output)
    assert (calibration.draft, calibration.target) == (TINY_CALIBRATION.draft, TINY_CALIBRATION.target)
    assert calibration.prompts_sha256 == calibration_prompts(None).sha256
    assert 0 < baseline.acceptance_rate < 1
    assert len(baseline.prompts) == 16
    assert baseline.total_draft_tokens <= 4 * baseline.num_rounds
    before = output.read_bytes()
    monkeypatch.setattr(f"{main.__module__}.measure_acceptance", None)
    assert measure(pair, output) == 0
    assert output.read_bytes() == before


@pytest.mark.long
def test_other_prompts_are_measured_again_and_only_those_that_are_kept_for_it(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, mine = tmp_path / "calibration.json", tmp_path / "mine.txt"
    assert measure(pair, output) == 0
    general = AcceptanceBaseline.read(output)
    mine.write_text("\n---\n".join(f"The answer to question {number} is" for number in range(40)))
    capsys.readouterr()
    assert measure(pair, output, "--prompts", str(mine)) == 0
    assert f"of {mine} (mine" in capsys.readouterr().out
    own = AcceptanceBaseline.read(output)
    kept = {prompt.prompt_id for prompt in read_prompts(mine).for_calibration().all}
    assert {prompt.name for prompt in own.prompts} <= kept and len(kept) > 1
    assert {prompt.name for prompt in general.prompts}.isdisjoint(kept)
    before = output.read_bytes()
    with mine.open("a") as file:  # a prompt that calibration does not see
        file.write("\n---\n" + next(t for t in map(str, range(99)) if not Prompt("", t).is_for_calibration))
    assert measure(pair, output, "--prompts", str(mine)) == 0
    assert output.read_bytes() == before


@pytest.mark.long
def test_conversations_are_measured_in_the_targets_template_and_refused_without_one(
    pair: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output, mine = tmp_path / "calibration.json", tmp_path / "mine.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"question {number}?"}]} for number in range(40)]
    mine.write_text("\n".join(map(json.dumps, lines)))
    with monkeypatch.context() as patch:
        patch.setattr(f"{main.__module__}.measure_step_costs", None)  # nothing is measured before
        assert measure(pair, output, "--prompts", str(mine)) == 1
    assert "no chat template for prompts of messages" in capsys.readouterr().err
    target = tmp_path / "target"
    shutil.copytree(pair[1], target)
    write_template(target)
    assert measure((pair[0], target), output, "--prompts", str(mine)) == 0
    assert Calibration.read(output).prompts_sha256 == calibration_prompts(mine).sha256
    baseline = AcceptanceBaseline.read(output)
    kept = {prompt.prompt_id for prompt in read_prompts(mine).for_calibration().all}
    assert {prompt.name for prompt in baseline.prompts} <= kept and len(kept) > 1
    for prompt in baseline.prompts:
        assert prompt.input_ids[0] == prompt.input_ids[-1] == 0 and 0 not in prompt.input_ids[1:-1]


def test_too_few_prompts_are_left_for_reports_and_calibration_uses_general_ones(tmp_path: Path) -> None:
    text = next(text for text in map(str, range(99)) if not Prompt("", text).is_for_calibration)
    (tmp_path / "mine.txt").write_text(text)
    found = calibration_prompts(tmp_path / "mine.txt")
    assert len(found.all) == 16 and found.source == GENERAL
    assert "mine.txt has too few prompts" in found.notes[0]
