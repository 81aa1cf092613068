"""Tests of what a comparison says: the sentence, the example, and the files that CI reads."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pipelines.validation.__main__ import main
from pipelines.validation.openai.baseline import read_baseline
from tests.support.stand_in_openai import Faults, StandIn, stand_in_openai

SIZE = "--num-prompts", "18", "--max-tokens", "8", "--num-at-once", "4"


@pytest.fixture(autouse=True)
def _step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))


def compared(candidate: StandIn, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of a comparison with a right server, and its report."""
    files = "--html", str(folder / "page.html"), "--json", str(folder / "report.json")
    with stand_in_openai() as control:
        code = main(["--against", candidate.url, "--control", control.url, *SIZE, *files, *more])
    return code, json.loads((folder / "report.json").read_text())


def test_a_failure_is_told_in_a_sentence_with_the_controls_count_and_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with stand_in_openai(Faults(changes=0.8)) as candidate:
        code, report = compared(candidate, tmp_path)
        printed = capsys.readouterr().out
        sentence = report["sections"][0]["summary"]
        assert code == 1 and len(report["sections"]) <= 5
        assert " of 18 plain answers differ from the control's (" in sentence
        assert "the control differs from itself in 0" in sentence
        assert "ask it again: curl -sN http" in printed.split("Verdict: FAIL")[1]
        page = (tmp_path / "page.html").read_text()
        assert page.index("ask it again") < page.index("What was compared")
        words = shlex.split(report["sections"][0]["figures"]["differences"][0]["curl"])
        before = len(candidate.requests)
        assert words[2].startswith(f"{candidate.url}/v1/") and len(candidate.requests) == before
        assert json.loads(words[words.index("-d") + 1]) in candidate.requests, "it was asked so"


def test_what_differs_too_seldom_says_how_much_would_decide(tmp_path: Path) -> None:
    with stand_in_openai(Faults(changes=0.1)) as candidate:
        code, report = compared(candidate, tmp_path)
    assert code == 3
    assert "plain answers would decide: --minutes" in report["sections"][0]["summary"]
    with stand_in_openai() as candidate:
        code, report = compared(candidate, tmp_path, "--fail-on", "fail")
    assert (code, report["verdict"]) == (0, "inconclusive")
    assert report["sections"][0]["summary"].startswith("no difference in 18 plain answers and ")


def test_failed_requests_are_counted_and_named_with_their_server(tmp_path: Path) -> None:
    with stand_in_openai(Faults(fails=0.2)) as candidate:
        code, report = compared(candidate, tmp_path)
    verdict, _, _, rest = report["sections"]
    assert code == 1 and "the server answered with HTTP status 500" in verdict["summary"]
    failed = rest["figures"]["failures"]
    assert failed["control"] == {} and sum(failed["candidate"].values()) > 1
    assert candidate.url in verdict["figures"]["differences"][0]["candidate"]


def test_what_was_not_looked_at_is_listed(tmp_path: Path) -> None:
    with stand_in_openai() as candidate:
        _, report = compared(candidate, tmp_path)
    rest = report["sections"][-1]["figures"]
    noted = {note.partition(":")[0] for note in rest["not_checked"]}
    assert noted >= {"log probabilities", "pairs of choices (n=2)", "JSON answers", "required tool calls"}
    assert "images and audio" in rest["never_asked"]


def test_files_for_ci_have_every_difference(tmp_path: Path) -> None:
    junit, sarif = tmp_path / "junit.xml", tmp_path / "verify.sarif"
    with stand_in_openai(Faults(fails=0.2)) as candidate:
        _, report = compared(candidate, tmp_path, "--junit", str(junit), "--sarif", str(sarif))
    found = report["sections"][0]["figures"]["differences"]
    suite = ElementTree.parse(junit).getroot()
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed == {"verdict"} | {each["kind"] for each in found}
    assert int(suite.get("failures", 0)) == len(failed) and int(suite.get("skipped", 0)) > 0
    (run,) = json.loads(sarif.read_text())["runs"]
    assert len(run["results"]) == len(found)
    assert {each["ruleId"] for each in run["results"]} <= {
        each["id"] for each in run["tool"]["driver"]["rules"]
    }
    step = (tmp_path / "step.md").read_text()
    assert step.startswith("## draftproof verify: fail") and "curl -sN" in step


def test_a_baseline_names_its_server_and_says_when_it_is_too_small(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json.gz"
    with stand_in_openai() as control:
        assert main(["--control", control.url, "--record", str(file), *SIZE]) == 0
    assert "too small to pass: 18 plain answers, and 299 are needed" in capsys.readouterr().out
    assert read_baseline(file)[0].abilities.model == "stand-in"
    with stand_in_openai(model="another") as candidate:
        asked = ["--against", candidate.url, "--baseline", str(file), "--html", str(tmp_path / "p.html")]
        assert main(asked) == 3
        assert "the baseline is of the model stand-in" in capsys.readouterr().err
        assert main([*asked, "--model", "another"]) == 3
        assert "no difference in 18 plain answers" in capsys.readouterr().out
