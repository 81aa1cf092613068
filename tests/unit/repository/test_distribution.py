"""Tests that files of one group run on one worker, and other files on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY_ROOT

_TESTS = """
import json, os, pathlib, time
import pytest
{mark}
@pytest.mark.parametrize("number", range(4))
def test_it(number):
    time.sleep(0.2)
    with open("workers.jsonl", "a") as file:
        file.write(json.dumps([pathlib.Path(__file__).stem, os.environ["PYTEST_XDIST_WORKER"]]) + "\\n")
"""
_MARK = 'pytestmark = pytest.mark.xdist_group("a server")'


def workers(folder: Path, mark: str) -> dict[str, set[str]]:
    """Run four files of tests with two workers; return the workers of each file."""
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {REPOSITORY_ROOT}\n")
    (folder / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    for number in range(4):
        (folder / f"test_{number}.py").write_text(_TESTS.format(mark=mark))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stdout
    found: dict[str, set[str]] = {}
    for line in (folder / "workers.jsonl").read_text().splitlines():
        file, worker = json.loads(line)
        found.setdefault(file, set()).add(worker)
    return found


def test_files_of_a_group_run_on_one_worker(tmp_path: Path) -> None:
    found = workers(tmp_path, _MARK)
    assert len(found) == 4
    assert len(set.union(*found.values())) == 1


def test_other_files_run_on_one_worker_each_and_on_several_together(tmp_path: Path) -> None:
    found = workers(tmp_path, "")
    assert all(len(each) == 1 for each in found.values())
    assert len(set.union(*found.values())) == 2
