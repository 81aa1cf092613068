"""Tests of a pair's measured step costs: written, read again, and refused if impossible."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pipelines.bench.calibration.step_costs import blocks_needed, measure_step_costs
from pipelines.bench.calibration.step_times import StepTime
from pipelines.errors import EngineLoadError
from pipelines.executor.engine import Engine, EngineConfig, StepEngine
from pipelines.executor.step import StepInputs
from pipelines.manifest import EngineFiles
from pipelines.speculation.draft_length.calibration import Calibration
from tests.support.tiny_engines import TINY_CALIBRATION, build_tiny_pair


@pytest.fixture
def path(tmp_path: Path) -> Path:
    TINY_CALIBRATION.write(tmp_path / "calibration.json")
    return tmp_path / "calibration.json"


def refusal(path: Path) -> EngineLoadError:
    with pytest.raises(EngineLoadError) as caught:
        Calibration.read(path)
    error = caught.value
    assert error.what and error.limit and str(path) in error.values
    assert "run 'draftproof repository'" in error.remedy
    return error


def put(path: Path, key: str, value: Any) -> None:
    document = json.loads(path.read_text())
    *sections, name = key.split(".")
    place = document[sections[0]] if sections else document
    place[name] = value
    path.write_text(json.dumps(document))


def test_what_was_written_is_read(path: Path) -> None:
    assert Calibration.read(path) == TINY_CALIBRATION


RATES, SHARES = TINY_CALIBRATION.acceptance_rates, TINY_CALIBRATION.margin_shares


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("draft.seconds", [0.0, 0.002]),
        ("target.seconds", [0.001, math.nan]),
        ("target.seconds", [0.001]),
        ("draft.rows", [36, 2]),
        ("draft.rows", [0, 36]),
        ("draft.change_s", -0.1),
        ("target.seconds_per_position", -1e-9),
        ("target.reread_share", 1.01),
        ("acceptance_rates", [*RATES[:-1], 1.01]),
        ("acceptance_rates", [math.nan, *RATES[1:]]),
        ("acceptance_rates", RATES[:-1]),
        ("margin_shares", [*SHARES, 0.0]),
        ("margin_shares", [0.5 * share for share in SHARES]),
        ("busy_share", 1.01),
        ("busy_share", math.nan),
    ],
)
def test_an_invalid_value_is_refused_by_name(path: Path, key: str, value: Any) -> None:
    put(path, key, value)
    assert f"{key.split('.')[-1]}=" in refusal(path).values


@pytest.mark.parametrize(("key", "value"), [("target.seconds", ["fast", "slow"]), ("acceptance_rates", 0.5)])
def test_a_wrong_type_is_refused(path: Path, key: str, value: Any) -> None:
    put(path, key, value)
    assert "TypeError" in refusal(path).values


def test_one_size_of_a_step_is_no_line(path: Path) -> None:
    put(path, "draft.rows", [2])
    put(path, "draft.seconds", [0.001])
    assert "at least two" in refusal(path).values


@pytest.mark.parametrize("content", [b"", b'{"draft": {"rows"', b"\xff\xfe\x00", b"[]", b"{}"])
def test_a_file_that_is_something_else_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refusal(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path / "none.json")


def load(directory: Path) -> Engine:
    files = EngineFiles(directory)
    return Engine(files, blocks_needed(EngineConfig.read(files), max_rows=16))


def test_the_smallest_server_is_measured_at_three_sizes(tmp_path: Path) -> None:
    """With one concurrent request and one draft token, no step has more than two rows."""
    draft, target = map(load, build_tiny_pair(tmp_path))
    costs = measure_step_costs(draft, target, max_rows=2)
    assert costs.draft.rows == costs.target.rows == (1, 2, 3)


class TimedByContext:
    """An engine whose steps take as long as a model says, on the clock of ``time_step``.

    ``reread_share``: share of the context's reading that each further row repeats. ``disturbed_rows``: a step
    with so many takes longer.
    """

    def __init__(self, engine: Engine, reread_share: float, disturbed_rows: int = 0) -> None:
        self.config = engine.config
        self._reread_share, self._disturbed_rows = reread_share, disturbed_rows

    def seconds(self, inputs: StepInputs) -> float:
        contexts = sorted(inputs.past_lens.tolist(), reverse=True)
        disturbed_s = 0.005 if len(contexts) == self._disturbed_rows else 0.0
        return 0.01 + disturbed_s + 1e-6 * (contexts[0] + self._reread_share * sum(contexts[1:]))

    def step(self, inputs: StepInputs) -> StepInputs:
        return inputs


@pytest.mark.parametrize(("reread_share", "disturbed_rows"), [(0.0, 0), (0.3, 0), (1.0, 0), (0.0, 2)])
def test_what_rows_share_of_a_context_is_measured_and_fewer_rows_never_cost_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reread_share: float, disturbed_rows: int
) -> None:
    timed = TimedByContext(load(build_tiny_pair(tmp_path)[0]), reread_share, disturbed_rows)

    def time_step(step: Callable[[], StepInputs]) -> StepTime:
        seconds = timed.seconds(step())
        return StepTime(wall_s=seconds, busiest_s=seconds, ran_s=seconds, waited_s=0.0)

    monkeypatch.setattr("pipelines.bench.calibration.step_costs.time_step", time_step)
    costs = measure_step_costs(cast(StepEngine, timed), cast(StepEngine, timed), max_rows=16).target
    assert costs.reread_share == pytest.approx(reread_share, abs=0.05)
    assert costs.seconds_per_position == pytest.approx(1e-6, rel=0.1)
    assert costs.seconds == pytest.approx([0.01] * len(costs.rows), rel=0.02)
