"""The acceptance that a pair was measured with: in its calibration file, once, refused if it cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from build.template_values import calibration_file
from pipelines.acceptance_baseline import AcceptanceBaseline, BaselinePrompt
from pipelines.calibration.__main__ import main
from pipelines.errors import EngineLoadError
from pipelines.speculation.calibration import Calibration
from tests.tiny_engines import TINY_CALIBRATION, build_tiny_pair

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
    assert AcceptanceBaseline.read(path) is None
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
        ("prompts", [{"name": "one", "input_ids": [1.5]}]),
        ("num_rounds", -1),
        ("num_rounds", True),
        ("num_rounds", 5),
        ("total_draft_tokens", 11),
        ("accepted_per_position", [6, 4]),
        ("accepted_per_position", [4, 6, 2]),
        ("accepted_per_position", None),
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
    return build_tiny_pair(tmp_path_factory.mktemp("engines"), draft="noisy")


def measure(pair: tuple[Path, Path], output: Path) -> int:
    draft, target = map(str, pair)
    return main(["--draft", draft, "--target", target, "--output", str(output), "--max-rows", "8"])


def test_an_older_calibration_gets_one_and_keeps_its_costs(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "calibration.json"
    shutil.copyfile(calibration_file(*pair), output)
    assert measure(pair, output) == 0
    baseline = AcceptanceBaseline.read(output)
    assert baseline is not None
    assert Calibration.read(output) == TINY_CALIBRATION
    assert 0 < baseline.acceptance_rate < 1
    assert len(baseline.prompts) == 16
    assert baseline.total_draft_tokens <= 4 * baseline.num_rounds
    before = output.read_bytes()
    monkeypatch.setattr("pipelines.calibration.__main__.measure_baseline", None)
    assert measure(pair, output) == 0
    assert output.read_bytes() == before


def test_the_same_pair_gives_the_same_baseline(pair: tuple[Path, Path], tmp_path: Path) -> None:
    found = []
    for name in ("first", "second"):
        assert measure(pair, tmp_path / f"{name}.json") == 0
        found.append(AcceptanceBaseline.read(tmp_path / f"{name}.json"))
    assert found[0] == found[1]
