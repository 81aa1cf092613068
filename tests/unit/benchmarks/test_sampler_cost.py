"""Tests of the sampler's measurement on a real, tiny engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.sampler_cost import NUM_REQUESTS, SETTINGS, main
from tests.support.tiny_engines import build_tiny_pair


def test_every_setting_is_measured_at_both_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, target = build_tiny_pair(tmp_path)
    assert main(["--engine", str(target)]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    measured = {(entry["num_rows"], entry["setting"]) for entry in document["sampler"]}
    assert measured == {(rows, setting) for rows in (NUM_REQUESTS, 5 * NUM_REQUESTS) for setting in SETTINGS}
    assert all(0 < entry["share"] == entry["sampler_ms"] / entry["step_ms"] for entry in document["sampler"])
    assert document["conditions"]["engines"]["target"]["num_threads"] == 2


def test_an_engine_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engine", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err
