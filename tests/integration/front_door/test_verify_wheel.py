"""Tests of ``draftproof`` in an otherwise empty environment: command and pytest plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import url_of
from tests.support.empty_environment import empty_environment, run_in
from tests.support.fault_proxy import fault_proxy
from tests.support.planted_faults import BY_NAME
from tools.wheel.__main__ import build_small

pytestmark = [pytest.mark.triton, pytest.mark.long, pytest.mark.xdist_group("front door")]

TEST = """
import pytest

pytest_plugins = "pytester"


@pytest.mark.parametrize(("url", "outcome"), [({url!r}, "passed"), ({faulty!r}, "failed")])
def test_the_plugin(url, outcome, pytester):
    pytester.makepyfile(f"def test_same(same_answers): same_answers({{url!r}}, {baseline!r}, page='p.html')")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(**{{outcome: 1}})
    assert "verify" in (pytester.path / "p.html").read_text()
    if outcome == "failed":
        result.stdout.fnmatch_lines(["*fail: *", "*differ from the control's*"])
        result.stdout.no_fnmatch_line("*Traceback*")
"""


def test_a_new_version_is_judged_by_the_old_ones_baseline(door: Server, tmp_path: Path) -> None:
    python = empty_environment(tmp_path, build_small(tmp_path), "pytest")
    packages = json.loads(run_in(tmp_path, python, "-m", "pip", "list", "--format", "json").stdout)
    names = {package["name"] for package in packages}
    assert {"draftproof", "scipy", "pydantic"} <= names
    assert not names & {"torch", "openvino", "nvidia-pytriton", "tokenizers", "aiohttp", "PyYAML"}
    command, baseline = python.with_name("draftproof"), tmp_path / "baseline.json.gz"
    size = "--num-prompts", "320", "--max-tokens", "10", "--num-at-once", "4"
    # JSON of random weights ends at its length only; without response_format it is not asked for.
    alone = "--control-fields", '{"num_draft_tokens": 0, "response_format": null}'
    recorded = run_in(
        tmp_path, command, "verify", "--control", url_of(door), *alone, "--record", baseline, *size
    )
    assert recorded.returncode == 0, recorded.stderr
    judged = run_in(tmp_path, command, "verify", "--against", url_of(door), "--baseline", baseline, "--json")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert json.loads(judged.stdout.splitlines()[-1])["verdict"] == "pass"
    assert (tmp_path / ".run" / "verify.html").is_file()
    with fault_proxy(url_of(door), BY_NAME["a token is replaced"], one_in=50) as faulty:
        test = TEST.format(url=url_of(door), faulty=faulty.url, baseline=str(baseline))
        (tmp_path / "test_plugin.py").write_text(test, encoding="utf-8")
        done = run_in(tmp_path, python, "-m", "pytest", "-q", "test_plugin.py")
    assert done.returncode == 0, done.stdout
