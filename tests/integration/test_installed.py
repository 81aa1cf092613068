"""Tests of both packages as a new user installs them: into an empty environment, without a checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.empty_environment import empty_environment, run_in
from tools.wheel.__main__ import build_serve, build_small

pytestmark = [pytest.mark.triton, pytest.mark.long]


def test_the_demonstration_runs_from_an_empty_folder(tmp_path: Path) -> None:
    """Long, as pip installs 700 MB; tests/unit/tools/test_wheel.py checks what is installed without it."""
    dist, home, empty = (tmp_path / name for name in ("dist", "home", "empty"))
    home.mkdir()
    empty.mkdir()
    build_serve(dist)
    python = empty_environment(tmp_path, "--find-links", dist, f"{build_small(dist)}[serve]")
    packages = python.parent.parent
    before = _files(packages)
    # No compiler is on the PATH, and nothing says where the checkout is.
    environment = {"HOME": str(home), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_in(empty, python.with_name("draftproof"), *arguments, env=environment)

    size = "--num-prompts", "5", "--sampled", "1", "--max-tokens", "24"
    done = run("demo", *size, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "pass"
    assert not list(empty.iterdir()) and _files(packages) == before
    assert {path.name for path in home.iterdir()} == {".local"}
    assert len(list((home / ".local/share/draftproof/engines/demo").glob("target-*"))) == 1
    assert (home / ".local/state/draftproof/demo/server.log").is_file()

    served = run("--home", "here", "serve", "--openai-port", "0")
    assert served.returncode == 0, served.stdout + served.stderr
    assert run("--home", "here", "stop").stdout == "stopped\n"
    assert {path.name for path in (empty / "here").iterdir()} == {"engines", ".run"}
    assert "OpenVINO" in run("--version").stdout


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}
