"""Tests that the experiment on a GPU refuses a machine without one; the rest needs one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_rows import __main__ as command
from pipelines.deploy.gpus import Gpu

SMALL = Gpu(0, "NVIDIA A10", 23_028, "8.6", "580.95")


def test_a_machine_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["--output", str(tmp_path / "result.json")]) == 1
    error = capsys.readouterr().err
    assert "no NVIDIA GPU can be used; nvidia-smi is not on PATH" in error
    assert "--runtime embedded" in error


def test_a_gpu_that_is_too_old_is_refused_before_torch_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "visible_gpus", lambda: (SMALL,))
    assert command.main(["--output", str(tmp_path / "result.json")]) == 1
    assert "compute capability 8.6, 23,028 MiB; compute capability 9.0 or more" in capsys.readouterr().err
    assert not (tmp_path / "result.json").exists()
