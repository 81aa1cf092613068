"""Tests of the report of a rollout."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.report.record import RolloutRecord, Transition
from pipelines.canary.report.rollout_report import report_of
from pipelines.canary.report.text import report_lines
from pipelines.errors import CanaryError
from tests.unit.canary.requests import failed, recorded_traffic, request
from tests.unit.canary.rollouts import rollout

BEGAN_S = 1_700_000_000.0
CONDITIONS = {"date": "2026-11-22", "command": "python -m pipelines.canary report", "num_cores": 2}
NASTY = '<script>alert(1)</script> & "quotes" \u202e ⏎\n\n  indented\ttext'


def traffic(num: int, seed: int = 0) -> list[ObservedRequest]:
    """Return requests of all arms, drawn from recorded ones, two a second; the stable pair's are replayed."""
    rng = random.Random(seed)
    recorded = recorded_traffic()
    pools = {arm: [each for each in recorded if each.arm == arm] for arm in ("stable", "control")}
    found = []
    for number in range(num):
        arm = rng.choice(("stable", "candidate", "candidate", "stable", "control"))
        drawn = rng.choice(pools["control" if arm == "control" else "stable"])
        at_s = BEGAN_S + 60 + number / 2
        asked = replace(drawn, request_id=f"{arm}-{number}", arm=arm, arrived_at_s=at_s)
        found.append(asked)
        if arm == "stable":
            repeated = {"arm": "candidate", "is_replay": True, "answer": "equal"}
            found.append(replace(asked, **repeated, num_common_tokens=drawn.num_output_tokens))
    return found


def transitions(*phases: tuple[str, float]) -> tuple[Transition, ...]:
    before, found = "", []
    for number, (phase, weight) in enumerate(phases):
        weights = {"stable": 0.95 - weight, "candidate": weight, "control": 0.05}
        evidence = {"num_pairs": 10 * number, "verdict": "fail"}
        reason = f"work of {before or 'nothing'} is done"
        found.append(Transition(BEGAN_S + 60 * number, before, phase, reason, evidence, weights))
        before = phase
    return tuple(found)


FAILED = rollout(
    phase="rolled_back",
    requests=(*traffic(400), request(-1, arrived_at_s=BEGAN_S + 290, answer="diverged"), failed(-2)),
    transitions=transitions(
        ("preflight", 0), ("shadow", 0), ("step/1", 0.05), ("step/2", 0.475), ("rolling_back", 0)
    ),
    divergences=(
        {
            "prompt": f"Continue: {NASTY}",
            "expected_of": "stable",
            "differs_in": "tokens",
            "expected_text": f"def read(path):\n    return path.read_text() {NASTY}",
            "candidate_text": "def read(path):\n    return path.write_text()",
            "first_difference": 9,
            "expected": "",
            "candidate": "",
        },
        {
            "prompt": "",
            "expected_of": "own_target",
            "differs_in": "finish_reason",
            "expected_text": "one",
            "candidate_text": "one two",
            "first_difference": 1,
            "expected": "length",
            "candidate": "stop",
        },
    ),
)


def report(record: RolloutRecord) -> tuple[dict[str, Any], str]:
    """Return the report as JSON has it, and as text."""
    found: dict[str, Any] = json.loads(json.dumps(report_of(record, CONDITIONS), allow_nan=False))
    return found, "\n".join(report_lines(found))


def test_the_report_has_decisions_figures_and_differences() -> None:
    found, text = report(FAILED)
    assert (found["verdict"], found["action"], found["phase"]) == ("fail", "roll_back", "rolled_back")
    assert found["arms"]["candidate"]["differ"] == found["arms"]["candidate"]["errors"] == 1
    assert found["arms"]["control"]["acceptance_rate"] is None
    assert len(found["arms"]["stable"]["acceptance_by_position"]) == 8
    assert [each["to_phase"] for each in found["transitions"]][-1] == "rolling_back"
    assert found["divergences"][1]["candidate_text"] == "one two"
    assert found["conditions"] == CONDITIONS
    for line in ("answers ", "candidate ", "The first of 2 answers that differ"):
        assert f"\n{line}" in text
    assert "1. from token 9 on; prompt: " in text
    assert "2. finish_reason; prompt: ''\n   the candidate's target alone (length): 'one'\n" in text
    assert "   candidate (stop): 'one two'" in text


def test_texts_of_clients_change_nothing_on_a_terminal() -> None:
    _, text = report(FAILED)
    assert "\u202e" not in text and "\t" not in text
    assert repr(NASTY)[1:-1] in text


def test_a_report_without_data_is_refused() -> None:
    with pytest.raises(CanaryError) as caught:
        report_of(rollout(phase="shadow"), {})
    assert all((caught.value.what, caught.value.values, caught.value.limit, caught.value.remedy))


def test_a_candidate_that_was_refused_before_any_request_has_a_report() -> None:
    refused = Transition(
        BEGAN_S, "preflight", "rolled_back", "another tokenizer", {"verdict": "fail"}, {"stable": 1.0}
    )
    found, _ = report(rollout(phase="rolled_back", transitions=(refused,)))
    assert (found["verdict"], found["reason"]) == ("fail", "another tokenizer")


PROBES = {
    "num_draft_tokens": 4,
    "prompts": ["one", "two"],
    "baseline": {"acceptance_rate": 0.5, "mean_acceptance_length": 3.0},
    "probe": {"num_prompts": 2},
    "losses": [
        {"name": "acceptance_rate", "at_build": 0.5, "now": 0.45, "drop": 0.1, "verdict": "held"},
        {"name": "survival/1", "at_build": 0.8, "now": 0.8, "drop": 0.0, "verdict": "pass"},
    ],
    "limits": {"drop_holds_above": 0.05, "drop_fails_above": 0.15},
}
WAITING = rollout(
    phase="paused",
    began_at_s=BEGAN_S,
    transitions=(
        *transitions(("preflight", 0), ("loading", 0), ("cold_start", 0)),
        Transition(
            BEGAN_S + 180,
            "cold_start",
            "paused",
            "acceptance_rate 0.45",
            PROBES,
            {"stable": 1.0, "candidate": 0},
        ),
    ),
)


def test_a_candidate_that_waits_for_a_person_has_a_report_with_what_it_lost() -> None:
    found, text = report(WAITING)
    assert (found["action"], found["reason"]) == ("hold", "acceptance_rate 0.45")
    assert found["transitions"][-1]["evidence"]["losses"] == PROBES["losses"]
    assert "acceptance_rate  needs review  0.5000        0.4500  +10.00%" in text
    assert "Needs review above +5.00%, fails above +15.00%." in text


def test_acceptance_is_counted_by_position_over_the_rounds_that_drafted_it() -> None:
    seen = (request(0), request(1, drafted_per_round=(2, 1, 0), accepted_per_round=(0, 1, 0)))
    arms = report_of(rollout(requests=seen), {})["arms"]
    assert arms["candidate"]["acceptance_by_position"] == [5 / 6, 3 / 5, 3 / 4, 2 / 4]
    assert arms["control"]["acceptance_by_position"] == []
