"""Tests of both packages as a new user installs them: into an empty environment, without a checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.deploy.ports import PORTS, Ports
from tests.support.empty_environment import empty_environment, run_in
from tools.wheel.__main__ import build_serve, build_small

OURS = """
name: ours
target: {checkpoint: engines/demo_pair/target, attention: draftproof, linear: draftproof, quantization: int8}
draft: {checkpoint: engines/demo_pair/draft, attention: draftproof, linear: draftproof, quantization: int4}
serving: {max_seq_len: 512}
"""
"""Engines with operators of ours, compiled for AVX2 and AVX-512 by whoever built the package."""

pytestmark = [pytest.mark.triton, pytest.mark.long]


def test_the_demonstration_runs_from_an_empty_folder(tmp_path: Path) -> None:
    """Long, as pip installs 700 MB; tests/unit/tools/test_wheel.py checks what is installed without it."""
    dist, home, empty, programs = (tmp_path / name for name in ("dist", "home", "empty", "programs"))
    for folder in (home, empty, programs):
        folder.mkdir()
    found = shutil.which("bash")
    assert found is not None
    (programs / "bash").symlink_to(found)
    build_serve(dist)
    python = empty_environment(tmp_path, "--find-links", dist, f"{build_small(dist)}[serve]")
    packages = python.parent.parent
    before = _files(packages)
    # Nothing but what Triton starts its Python models with: no compiler, and no word of the checkout.
    environment = {"HOME": str(home), "PATH": str(programs), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return run_in(empty, python.with_name("draftproof"), *arguments, env=environment)

    size = "--num-prompts", "5", "--sampled", "1", "--max-tokens", "24"
    done = run("demo", *size, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "pass"
    assert not list(empty.iterdir()) and _files(packages) == before
    assert {path.name for path in home.iterdir()} == {".local"}
    assert len(list((home / ".local/share/draftproof/engines/demo").glob("target-*"))) == 1
    assert (home / ".local/state/draftproof/demo/server.log").is_file()

    (empty / "ours.yaml").write_text(OURS)
    here, free = empty / "here", Ports.free()
    ports = [word for name in PORTS for word in (f"--{name}-port", getattr(free, name))]
    for arguments in (
        ("serve", *ports),
        ("verify", "--quick", "--num-prompts", "12", "--max-tokens", "24"),
        ("bench", "--quick", "--concurrency", "1", "--draft-lengths", "2"),
        ("stop",),
    ):
        done = run("--home", here, *arguments, "--recipe", "ours.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in here.iterdir()} == {"engines", ".run", "results"}
    assert {path.name for path in empty.iterdir()} == {"ours.yaml", "here"}
    (compiled,) = packages.rglob("operators-*.so")
    used = list(here.rglob("operators.so"))
    assert len(used) == 2 and {path.read_bytes() for path in used} == {compiled.read_bytes()}
    assert _files(packages) == before
    assert "OpenVINO" in run("--version").stdout


def _files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}
