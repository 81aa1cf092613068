"""Tests of the files for systemd and llama-swap: systemd's own checks, and options that exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pipelines.__main__ import parsed
from pipelines.deploy.__main__ import _parse
from tests.support.deployment_files import DEPLOY

UNIT = DEPLOY / "systemd" / "draftproof@.service"
MOST_EXPOSURE = 20  # of 100, "OK" is up to 49


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: not run")
    command = tmp_path / "bin" / "draftproof"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    copy = tmp_path / "draftproof@demo.service"
    text = UNIT.read_text(encoding="utf-8").replace("/opt/draftproof/bin/draftproof", str(command))
    copy.write_text(text, encoding="utf-8")
    return copy


def _analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_systemd_accepts_the_unit(unit: Path) -> None:
    done = _analyze("verify", "--recursive-errors=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_may_do_little(unit: Path) -> None:
    done = _analyze("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", unit)
    assert done.returncode == 0, done.stdout[-400:]


def test_each_command_of_the_files_exists() -> None:
    unit = re.findall(r"^ExecStart(?:Post)?=\S+/draftproof (.+)$", UNIT.read_text("utf-8"), re.MULTILINE)
    swap = yaml.safe_load((DEPLOY / "llama-swap" / "config.yaml").read_text(encoding="utf-8"))
    commands = [*unit, *(each["cmd"].removeprefix("draftproof ") for each in swap["models"].values())]
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("DRAFTPROOF_HOME", "")  # which --home sets
        names = [_parse(parsed(shlex.split(line.replace("${PORT}", "9000")))).command for line in commands]
    assert [name.__name__ for name in names] == ["_run", "_ready", "_run"]
