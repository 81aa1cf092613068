"""Tests of the lock of a run directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.deploy.__main__ import main
from pipelines.deploy.server import LOCK, lock_run_directory
from pipelines.errors import ServerStartError
from tests.support.processes import started


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    directory = tmp_path / "volume"
    directory.mkdir()
    return directory


def test_a_second_server_is_refused_for_as_long_as_the_first_one_runs(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock passes to the program that the process becomes, as tritonserver's does."""
    program = (
        "import os, pathlib, sys; from pipelines.deploy.server import lock_run_directory;"
        "lock_run_directory(pathlib.Path(sys.argv[1])); os.execv('/bin/sh', ['sh', '-c', 'echo; read line'])"
    )
    command = [sys.executable, "-c", program, str(volume)]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        assert main(["run", str(volume)]) == 1
        assert "another server uses this run directory" in capsys.readouterr().err
    lock_run_directory(volume)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(ServerStartError, match=r"not writable: .*; create it"):
        lock_run_directory(tmp_path)
