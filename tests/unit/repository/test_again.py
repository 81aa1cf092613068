"""Tests which failed tests are run again, and which runs are not tried again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import again
from tests.conftest import NOT_RUN, UNKNOWN

WAITED = "tests/integration/test_bursts.py::test_waits"


def run(failed: list[str], not_run: int, cache: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> int:
    """Return the exit code after a run, if each test run alone has the given one."""
    for name, value in (("cache/lastfailed", dict.fromkeys(failed, True)), (NOT_RUN, not_run)):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(json.dumps(value))
    monkeypatch.setattr(again, "CACHE", cache)
    alone: list[Any] = []

    def answer(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        alone.append(command[-1])
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(again.subprocess, "run", answer)
    result = again.main()
    assert set(alone) <= set(failed)
    return result if alone else result + 10


@pytest.mark.parametrize("code", [0, 1])
def test_a_test_that_passes_alone_is_forgiven(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([WAITED], 0, tmp_path, monkeypatch, code) == code


@pytest.mark.parametrize(
    ("failed", "not_run"),
    [
        pytest.param([WAITED], 3, id="tests that did not run"),
        pytest.param([WAITED], UNKNOWN, id="a run that was killed"),
        pytest.param([WAITED, "tests/exact/test_exact_distribution.py::test_a"], 0, id="a wrong token"),
        pytest.param([f"{WAITED}[{number}]" for number in range(6)], 0, id="too many"),
        pytest.param([], 0, id="none that failed"),
    ],
)
def test_nothing_is_tried_again(
    failed: list[str], not_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(failed, not_run, tmp_path, monkeypatch) == 11
