"""Tests of thread settings, which are measured on real engines in turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.bench.calibration import threads
from pipelines.bench.calibration.threads import Setting
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
    assert threads.main(["--threads", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1


def test_more_engines_than_the_memory_holds_are_refused_before_one_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"kv_block_size": 32, "num_layers": 2, "num_kv_heads": 2, "head_size": 64}
    (tmp_path / "engine.json").write_text(json.dumps({**sizes, "kv_cache_dtype": "float32"}))
    (tmp_path / "engine.bin").write_bytes(bytes(40_000_000))
    built = {"draft": str(tmp_path), "target": str(tmp_path)}
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "build_recipe", lambda module, recipe, report: built)
    monkeypatch.setattr(threads, "available_bytes", lambda: 800_000_000)
    assert threads.main([]) == 1
    error = capsys.readouterr().err
    # Two copies of the weights of eight engines, their caches of four blocks, and the process.
    assert "4 of the target and 4 of the draft, 0.9 GB; 0.8 GB free; compare fewer" in error


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
