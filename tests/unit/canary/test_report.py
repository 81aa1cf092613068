"""Tests of the judgement of a rollout's record, and of its report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.canary.report.rollout_report import report_of
from pipelines.canary.report.text import report_lines
from pipelines.router.observation import Divergence
from tests.unit.canary.requests import failed, limits, moved, replay, request, rollout

DIVERGED = (request(0, answer="diverged"),)
UNDECIDED = {"verdict": "inconclusive"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (rollout("shadow"), ("inconclusive", "go_on")),
        (rollout(requests=DIVERGED), ("fail", "roll_back")),
        (rollout("paused", requests=DIVERGED), ("fail", "roll_back")),
        (rollout("paused", moved("shadow", "paused")), ("inconclusive", "hold")),
    ],
)
def test_requests_are_judged_before_any_decision(record: RolloutRecord, expected: tuple[str, str]) -> None:
    found = judgement(record)
    assert (found.verdict, found.action, found.phase) == (*expected, record.phase)
    assert found.reason.startswith("fail: answers" if record.requests else "inconclusive: ")


@pytest.mark.parametrize(
    ("phase", "evidence", "expected"),
    [
        ("promoting", {}, ("pass", "promote")),
        ("promoting", UNDECIDED, ("inconclusive", "promote")),
        ("rolling_back", {"verdict": "fail"}, ("fail", "roll_back")),
        ("rolling_back", {}, ("fail", "roll_back")),
        ("aborted", UNDECIDED, ("inconclusive", "roll_back")),
    ],
)
def test_what_is_decided_stays_so_whatever_the_requests_say(
    phase: str, evidence: dict[str, Any], expected: tuple[str, str]
) -> None:
    end = {"promoting": "promoted"}.get(phase, "rolled_back")
    transitions = moved("step/1", phase, **evidence), moved(phase, end, "unloaded")
    for record in (rollout(phase, transitions[0], requests=DIVERGED), rollout(end, *transitions)):
        found = judgement(record)
        assert (found.verdict, found.action) == expected
        assert found.reason == "because"


@pytest.mark.parametrize(("phase", "action"), [("step/1", "go_on"), ("paused", "hold"), ("shadow", "go_on")])
def test_a_candidate_that_passes_is_not_promoted_before_its_last_step(phase: str, action: str) -> None:
    requests = [
        each
        for number in range(1500)
        for each in (request(number), request(number, "stable"), *([replay(number)] if number % 2 else []))
    ]
    found = judgement(rollout(phase, requests=tuple(requests), limits=limits(goodput=None)))
    assert (found.verdict, found.action) == ("pass", action), found.reason
    assert found.reason.endswith("not judged: goodput")


NASTY = '<script>alert(1)</script> & "quotes" \u202e ⏎\n\n  indented\ttext'
FAILED = rollout(
    "rolled_back",
    moved("step/2", "rolling_back", verdict="fail"),
    requests=(
        *(request(number, arm) for number in range(60) for arm in ("stable", "candidate")),
        request(
            0,
            drafted_per_round=(2, 1, 0),
            accepted_per_round=(0, 1, 0),
            answer="diverged",
            divergence=Divergence(f"Continue: {NASTY}", "stable", "tokens", NASTY, "", 9),
        ),
        replace(
            failed(61),
            divergence=Divergence("", "own_target", "finish_reason", "one", "one two", 1, "length", "stop"),
        ),
    ),
)


def report(record: RolloutRecord) -> tuple[dict[str, Any], str]:
    """Return the report as JSON has it, and as text."""
    found: dict[str, Any] = json.loads(json.dumps(report_of(record, {"num_cores": 2}), allow_nan=False))
    return found, "\n".join(report_lines(found))


def test_the_report_has_decisions_figures_and_differences() -> None:
    found, text = report(FAILED)
    assert (found["verdict"], found["action"], found["phase"]) == ("fail", "roll_back", "rolled_back")
    candidate = found["arms"]["candidate"]
    assert candidate["differ"] == candidate["errors"] == 1
    assert [each["to_phase"] for each in found["transitions"]] == ["rolling_back"]
    assert found["conditions"] == {"num_cores": 2}
    assert candidate["acceptance_rate"] == pytest.approx(0.7487, abs=1e-4)
    for line in ("answers ", "mean_acceptance_length ", "The first of 2 answers that differ"):
        assert f"\n{line}" in text
    assert "1. from token 9 on; prompt: " in text
    assert "2. finish_reason; prompt: ''\n   the candidate's target alone (length): 'one'\n" in text
    assert "   candidate (stop): 'one two'" in text


def test_texts_of_clients_change_nothing_on_a_terminal() -> None:
    _, text = report(FAILED)
    assert "\u202e" not in text and "\t" not in text
    assert repr(NASTY)[1:-1] in text


def test_a_candidate_without_requests_has_a_report() -> None:
    found, text = report(rollout("rolled_back", moved("preflight", "rolled_back", "another tokenizer")))
    assert (found["verdict"], found["reason"]) == ("fail", "another tokenizer")
    assert found["arms"]["candidate"]["acceptance_rate"] is None and "stable" in text
