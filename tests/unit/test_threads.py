"""Thread settings are measured on real engines, in turn."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from pipelines.calibration import threads
from pipelines.calibration.threads import Setting
from tests.tiny_engines import build_tiny_pair


def test_every_setting_is_measured_and_the_fastest_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft, target = build_tiny_pair(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "_ROUNDS", 5)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"draft": str(draft), "target": str(target)})))
    assert threads.main(["--requests", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 2 * 2 + 1
    assert str(Setting(2, 1, "free")) in "\n".join(lines)
    fastest = lines[0].split(":")[0]
    assert fastest.split(", ")[-1] in lines[-1]
    assert json.loads((target / "engine.json").read_text())["num_threads"] == 2  # as it was


def test_input_that_names_no_engines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    with pytest.raises(SystemExit) as caught:
        threads.main([])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("processors", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (16, [1, 2, 4, 8, 16])]
)
def test_thread_counts_are_powers_of_two_and_all(processors: int, counts: list[int]) -> None:
    assert threads._thread_counts(processors) == counts
