"""Tests of the GitHub action: its steps run with real servers, and actionlint finds nothing in its use."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY_ROOT
from tests.support.stand_in_openai import Faults, stand_in_openai

FOLDER = REPOSITORY_ROOT / "deploy" / "github-action"
ACTION = yaml.safe_load((FOLDER / "action.yml").read_text(encoding="utf-8"))


def run_steps(given: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the step that compares, as GitHub does, with this checkout as the installed package."""
    command = folder / "bin" / "draftproof"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pipelines "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    inputs = {name: given.get(name, each.get("default", "")) for name, each in ACTION["inputs"].items()}
    (step,) = (each for each in ACTION["runs"]["steps"] if "draftproof verify" in each.get("run", ""))
    filled = {
        name: inputs[value.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, value in step["env"].items()
    }
    env = {
        **os.environ,
        **filled,
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY_ROOT),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(bash, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(("faults", "code"), [(Faults(), 0), (Faults(fails=0.3), 1)])
def test_the_action_compares_two_servers_and_leaves_its_reports(
    faults: Faults, code: int, tmp_path: Path
) -> None:
    size = "--num-prompts 6 --max-tokens 8 --num-at-once 2"
    with stand_in_openai() as control, stand_in_openai(faults) as candidate:
        given = {"against": candidate.url, "control": control.url, "arguments": size}
        done = run_steps(given, tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    reports = tmp_path / "verify-report"
    assert {file.name for file in reports.iterdir()} == {
        *("verify.html", "verify.json", "junit.xml", "verify.sarif")
    }
    assert json.loads((reports / "verify.json").read_text())["verdict"] == (
        "fail" if code else "inconclusive"
    )
    assert "draftproof verify: " in (tmp_path / "summary.md").read_text()


def test_the_example_gives_what_the_action_requires() -> None:
    example: Any = yaml.safe_load((FOLDER / "example.yml").read_text(encoding="utf-8"))
    (job,) = example["jobs"].values()
    given = next(step["with"] for step in job["steps"] if step.get("uses") == "./deploy/github-action")
    required = {name for name, each in ACTION["inputs"].items() if each.get("required")}
    assert required <= set(given) <= set(ACTION["inputs"])


@pytest.mark.skipif(not shutil.which("actionlint"), reason="actionlint is not installed")
def test_actionlint_finds_nothing_in_the_example(tmp_path: Path) -> None:
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    shutil.copy(FOLDER / "example.yml", workflows)
    shutil.copytree(FOLDER, tmp_path / "deploy" / "github-action")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    done = subprocess.run(["actionlint"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
