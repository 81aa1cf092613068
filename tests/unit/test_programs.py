"""Tests of ``draftproof``: its list, its programs, and how each of them ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines import __main__ as command
from pipelines.errors import ServerBusyError
from pipelines.program import run_program
from tests.conftest import REPOSITORY_ROOT

# A make that runs these tests must not pass its own flags down.
OUTSIDE_MAKE = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """Return the command as the Makefile installs it into a checkout's environment."""
    (tmp_path / "a checkout" / ".venv" / "bin").mkdir(parents=True)
    checkout = tmp_path / "a checkout"
    for folder in ("build", "pipelines"):
        (checkout / folder).symlink_to(REPOSITORY_ROOT / folder)
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    shutil.copy(REPOSITORY_ROOT / "Makefile", checkout)
    shutil.copytree(REPOSITORY_ROOT / "tools", checkout / "tools")
    (checkout / ".venv" / "created.stamp").touch()
    made = _run("make", ".venv/bin/draftproof", cwd=checkout, env=OUTSIDE_MAKE)
    assert made.returncode == 0, made.stderr
    return checkout / ".venv" / "bin" / "draftproof"


def _run(*command_line: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command_line)), capture_output=True, text=True, timeout=120, check=False, **options
    )


def test_the_launcher_runs_its_checkouts_programs_from_any_folder(launcher: Path, tmp_path: Path) -> None:
    shown = _run(launcher, "--help", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert set(re.findall(r"^  ([a-z-]+)  +\w", shown.stdout, re.MULTILINE)) >= set(command.PROGRAMS)
    relative = _run(launcher.relative_to(tmp_path), "engines", "--recipe", "dmo", cwd=tmp_path)
    assert (relative.returncode, relative.stdout) == (1, "")
    assert relative.stderr.startswith("error: there is no recipe dmo: looked for ")


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--version"])
    assert ended.value.code == 0
    version, *others = capsys.readouterr().out.strip().split(", ")
    project = (REPOSITORY_ROOT / "pyproject.toml").read_text()
    assert f'version = "{version.removeprefix("draftproof ")}"' in project
    assert [part.split()[0] for part in others] == ["commit", "OpenVINO"]


def test_a_home_takes_what_is_written(tmp_path: Path) -> None:
    program = (
        "import sys; from pipelines.__main__ import parsed\n"
        "assert parsed(['--home', sys.argv[1], 'stop', '--recipe', 'x']) == ['stop', '--recipe', 'x']\n"
        "from pipelines.places import CACHE, CODE, DATA, RUN, located\n"
        "print(DATA, RUN, CACHE, located('checkpoints/none'), located('build') == CODE / 'build')"
    )
    done = _run(sys.executable, "-c", program, "new", cwd=tmp_path, env={"PYTHONPATH": str(REPOSITORY_ROOT)})
    home = tmp_path / "new"
    expected = home, home / ".run", home / ".cache", home / "checkpoints/none", True
    assert done.stdout.split() == list(map(str, expected)), done.stderr


@pytest.mark.parametrize("name", command.PROGRAMS)
def test_each_program_shows_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: draftproof {name} ")


def test_the_list_imports_no_program() -> None:
    listing = "import sys; sys.argv[1:] = ['--help']\nfrom pipelines.__main__ import main\n"
    program = f"{listing}try: main()\nexcept SystemExit: print(*sys.modules)"
    done = _run(sys.executable, "-c", program, cwd=REPOSITORY_ROOT)
    loaded = {name for name in done.stdout.splitlines()[-1].split() if name.startswith(("build", "pipe"))}
    assert loaded == {"pipelines", "pipelines.__main__", "pipelines.errors", "pipelines.program"}
    assert "numpy" not in done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("arguments", [[], ["sreve"], ["--recipe", "demo"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: draftproof [--home DIRECTORY] COMMAND")


@pytest.mark.parametrize(("result", "code"), [(None, 1), ({}, 1), ({"verdict": "inconclusive"}, 3)])
def test_an_error_is_its_two_parts_on_standard_error(
    result: dict[str, str] | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise ServerBusyError("the queue is full: 8 wait", "wait")

    assert run_program(work, result, code) == code
    shown = capsys.readouterr()
    assert shown.err == "error: the queue is full: 8 wait; wait\n"
    expected = None if result is None else {**result, "error": "the queue is full: 8 wait; wait"}
    assert (json.loads(shown.out) if shown.out else None) == expected


def test_an_interrupt_is_a_line_and_130() -> None:
    code = "import time; from pipelines.program import run_program as run; exit(run(lambda: time.sleep(60)))"
    program = [sys.executable, "-c", code]
    interruptible = ["env", "--default-signal=INT", *program]  # jobs of a shell ignore it
    with subprocess.Popen(
        interruptible, cwd=REPOSITORY_ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(2)  # by then it works
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "interrupted\n")
