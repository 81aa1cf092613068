"""Tests of thread settings, which are measured on real engines in turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.calibration import threads
from pipelines.calibration.threads import Setting
from tests.support.tiny_engines import build_tiny_pair


def test_every_setting_is_measured_and_the_fastest_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, target = build_tiny_pair(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "_ROUNDS", 5)
    built = {"draft": str(draft), "target": str(target)}
    monkeypatch.setattr(threads, "build_recipe", lambda module, recipe, report: built)
    assert threads.main(["--requests", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 2 * 2 + 1
    assert str(Setting(2, 1, "free")) in "\n".join(lines)
    fastest = lines[0].split(":")[0]
    assert fastest.split(", ")[-1] in lines[-1]
    assert json.loads((target / "engine.json").read_text())["num_threads"] == 2  # unchanged


def test_a_recipe_whose_engines_cannot_be_built_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert threads.main(["--recipe", "no-such-recipe"]) == 1
    errors = capfd.readouterr().err.splitlines()
    assert errors[0].startswith("error: there is no recipe no-such-recipe")
    assert "build.engines --recipe no-such-recipe ended with 1" in errors[-1]


@pytest.mark.parametrize(
    ("processors", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16])]
)
def test_thread_counts_are_powers_of_two_and_all(processors: int, counts: list[int]) -> None:
    assert threads._thread_counts(processors) == counts
