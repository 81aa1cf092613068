"""Tests of running a program of ``build``: its progress is shown, and it ends with whatever runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import building
from pipelines.process import ProcessIdentity
from pipelines.program import EXIT_INTERRUPTED

SLOW = """
import pathlib, time

print("half done", flush=True)
for _ in range(200):  # until somebody has read that line
    if pathlib.Path("read").exists():
        print('{"seconds": 1}')
        break
    time.sleep(0.05)
else:
    raise SystemExit(1)
"""


def test_a_line_is_shown_before_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_program.py").write_text(SLOW)
    monkeypatch.setattr(building, "CODE", tmp_path)
    lines: list[str] = []

    def report(line: str) -> None:
        lines.append(line)
        (tmp_path / "read").touch()

    assert building.run_build("slow_program", [], report) == {"seconds": 1}
    assert lines == ["half done"]


WITH_A_CHILD = """
import json, os, pathlib, subprocess, sys

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("new").write_text(json.dumps([os.getpid(), child.pid]))
os.rename("new", "started")
child.wait()
"""
PARENT = """
import pathlib, signal, sys
from pipelines import building
from pipelines.program import run_program

signal.signal(signal.SIGINT, signal.default_int_handler)  # which some launchers ignore
building.CODE = pathlib.Path(sys.argv[1])
sys.exit(run_program(lambda: building.run_build("with_a_child", [], print)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_program_leaves_no_process_of_its_build(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "with_a_child.py").write_text(WITH_A_CHILD)
    started = tmp_path / "started"
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)]) as parent:
        try:
            wait_until(started.exists)
            parent.send_signal(number)
            assert parent.wait(120) == EXIT_INTERRUPTED
            wait_until(lambda: not any(map(ProcessIdentity.of, json.loads(started.read_text()))))
        finally:
            parent.kill()
            for pid in json.loads(started.read_text()) if started.exists() else []:
                if identity := ProcessIdentity.of(pid):
                    identity.kill()


def wait_until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.02)
