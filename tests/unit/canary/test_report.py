"""Tests of the report of a rollout, also in a real browser.

Where no Chromium is installed, the tests with a browser are skipped.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.verdict import analyse
from pipelines.canary.report.html_page import as_html
from pipelines.canary.report.plots import (
    acceptance_by_position,
    charts_of,
    evidence_chart,
    matched_by_position,
)
from pipelines.canary.report.record import RolloutRecord, Transition
from pipelines.canary.report.rollout_report import CanaryReport, as_document, report_of
from pipelines.canary.report.sections import analysis_section
from pipelines.errors import CanaryError
from tests.support.headless_browser import NAMES, Browser, find_browser
from tests.unit.canary.requests import LIMITS, SLO, failed, recorded_traffic, replay, request
from tests.unit.canary.rollouts import rollout

BEGAN_S = 1_700_000_000.0
CONDITIONS = {"date": "2026-11-22", "command": "python -m pipelines.canary report", "num_cores": 2}
NASTY = '<script>alert(1)</script> & "quotes" \u202e ⏎\n\n  indented\ttext'
PROGRAM = find_browser()
NO_BROWSER = f"no browser is installed: looked for {', '.join(NAMES)}"


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


@pytest.fixture(scope="module")
def report() -> CanaryReport:
    return report_of(FAILED)


def test_the_document_says_what_the_page_shows(report: CanaryReport) -> None:
    found = json.loads(json.dumps(as_document(report, CONDITIONS), allow_nan=False))
    assert (found["verdict"], found["action"], found["phase"]) == ("fail", "roll_back", "rolled_back")
    assert found["arms"]["candidate"]["differ"] == found["arms"]["candidate"]["errors"] == 1
    assert found["arms"]["control"]["acceptance_rate"] is None
    assert len(found["arms"]["stable"]["acceptance_by_position"]) == 8
    assert [each["to_phase"] for each in found["transitions"]][-1] == "rolling_back"
    assert found["divergences"][1]["candidate_text"] == "one two"
    assert found["conditions"] == CONDITIONS
    ttft = found["confidence_sequences"]["ttft"]
    assert [each["num"] for each in ttft] == sorted({each["num"] for each in ttft})
    assert ttft[-1]["high"] - ttft[-1]["low"] < ttft[0]["high"] - ttft[0]["low"]


def test_a_report_without_data_is_refused() -> None:
    with pytest.raises(CanaryError) as caught:
        report_of(rollout(phase="shadow"))
    assert all((caught.value.what, caught.value.values, caught.value.limit, caught.value.remedy))


def test_a_candidate_that_was_refused_before_any_request_has_a_report() -> None:
    refused = Transition(
        BEGAN_S, "preflight", "rolled_back", "another tokenizer", {"verdict": "fail"}, {"stable": 1.0}
    )
    found = report_of(rollout(phase="rolled_back", transitions=(refused,)))
    assert (found.judgement.verdict, found.judgement.reason) == ("fail", "another tokenizer")
    page = as_html(found, CONDITIONS)
    assert "another tokenizer" in page


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
    found = report_of(WAITING)
    assert (found.judgement.action, found.judgement.reason) == ("hold", "acceptance_rate 0.45")
    document = json.loads(json.dumps(as_document(found, CONDITIONS), allow_nan=False))
    [section] = [each for each in document["sections"] if "at the build" in each["title"]]
    assert section["verdict"] == "inconclusive"
    assert section["figures"]["losses"] == PROBES["losses"]
    page = as_html(found, CONDITIONS)
    assert "+10.00%" in page and "no number of further requests would decide" in page


def test_sections_are_json_and_state_the_limits() -> None:
    requests = [*recorded_traffic(), *(request(number) for number in range(60))]
    analysed, empty = (analysis_section(analyse(each, LIMITS, SLO)) for each in (requests, []))
    for each in (analysed, empty):
        json.dumps(each.document, allow_nan=False)
    assert {entry["loss"] for entry in analysed.document["losses"]} >= {"errors", "speed_up/low"}
    assert "1.00%" in analysed.power
    assert empty.verdict == "inconclusive"


def test_acceptance_is_counted_by_position_over_the_rounds_that_drafted_it() -> None:
    seen = [request(0), request(1, drafted_per_round=(2, 1, 0), accepted_per_round=(0, 1, 0))]
    assert acceptance_by_position(seen, "candidate") == (5 / 6, 3 / 5, 3 / 4, 2 / 4)
    assert acceptance_by_position(seen, "control") == ()


def test_replays_are_shown_beside_what_they_repeat_cut_to_one_depth() -> None:
    shallow = replay(0, drafted_per_round=(2, 2, 3), accepted_per_round=(1, 2, 1))
    found = matched_by_position([request(0, "stable"), shallow, request(1)])
    assert found == {"stable": (1.0, 1.0, 1.0), "candidate": (1.0, 0.0, 0.0)}


def test_requests_that_failed_are_missing_at_the_end_of_the_curves() -> None:
    seen = (*(request(number) for number in range(3)), failed(3))
    [curve] = [chart for chart in charts_of(rollout(requests=seen)) if chart.title == "End-to-end latency"]
    [drawn] = curve.series
    assert drawn.marks[-1].title.startswith("candidate: 0.75 at ")


def test_replays_have_no_times() -> None:
    titles = [chart.title for chart in charts_of(rollout(requests=(replay(0),)))]
    assert titles == ["Acceptance by draft position, all requests"]


def test_weights_are_steps_that_last_until_the_end() -> None:
    [weights] = charts_of(rollout(transitions=FAILED.transitions, began_at_s=BEGAN_S))
    candidate = weights.series[1]
    assert candidate.name == "candidate"
    heights = [mark.title for mark in candidate.marks]
    assert heights[-3:] == ["candidate: 0.475 at 4", "candidate: 0 at 4", "candidate: 0 at 4"]
    assert [tick.text for tick in weights.x_ticks] == ["0", "1", "2", "3", "4"]


def test_a_confidence_sequence_keeps_its_limits_in_sight(report: CanaryReport) -> None:
    for each in report.evidence:
        if each.seen:
            chart = evidence_chart(each.judged, each.seen)
            assert len(chart.rules) == (1 if each.judged.metric.is_exact else 2)
            for place in (*chart.rules, *chart.series[0].marks[len(each.seen) // 2 :]):
                assert 10 < (place.place if hasattr(place, "place") else place.y) < chart.bottom


def test_what_differs_is_named_where_both_texts_are_equal(report: CanaryReport) -> None:
    page = as_html(report, CONDITIONS)
    assert "1. From token 9 on" in page and "2. finish_reason" in page
    assert "The candidate&#39;s target alone: length. Candidate: stop." in page


# In a browser ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(report: CanaryReport, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the pages of three rollouts: a failed one, a running one, and one with hardly any data."""
    records: dict[str, RolloutRecord] = {
        "going on": rollout(
            requests=tuple(traffic(60)), transitions=transitions(("shadow", 0)), began_at_s=BEGAN_S
        ),
        "one request": rollout(requests=(request(0),)),
        "waiting": WAITING,
    }
    reports = {"failed": report, **{name: report_of(record) for name, record in records.items()}}
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, made in reports.items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(as_html(made, CONDITIONS), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(NO_BROWSER)
    with Browser(PROGRAM) as found:
        yield found


# For each plot: its title, and the size of the drawn parts in pixels.
PLOTS = """
Array.from(document.querySelectorAll('figure'), figure => ({
    title: figure.querySelector('figcaption').textContent,
    area: figure.querySelector('svg').getBoundingClientRect().toJSON(),
    parts: Array.from(figure.querySelectorAll('.series'), series => series.getBoundingClientRect().toJSON()),
    marks: figure.querySelectorAll('.series rect, .series circle, .series polyline').length,
    texts: Array.from(figure.querySelectorAll('svg text'), text => text.textContent),
    numbers: figure.querySelector('svg').innerHTML.match(/NaN|Infinity|undefined|None/g),
}))
"""


@pytest.mark.parametrize("name", ["failed", "going on", "one request", "waiting"])
def test_the_page_is_whole_in_a_browser(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.complaints.clear()
    browser.open(pages[name])
    assert browser.complaints == []
    assert browser.value("document.scripts.length") == 0
    plots = browser.value(PLOTS)
    assert plots
    for plot in plots:
        assert plot["area"]["width"] > 200 and plot["area"]["height"] > 100, plot["title"]
        assert plot["marks"] and plot["parts"], plot["title"]
        for part in plot["parts"]:
            assert part["width"] + part["height"] > 0, plot["title"]
            assert plot["area"]["left"] <= part["left"] and part["right"] <= plot["area"]["right"] + 1, plot[
                "title"
            ]
        assert all(plot["texts"]) and plot["numbers"] is None, plot["title"]


def test_the_failed_rollout_shows_every_plot(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failed"])
    titles = [plot["title"] for plot in browser.value(PLOTS)]
    assert titles[:6] == [
        "Weights",
        "Acceptance by draft position, replays and their originals",
        "Acceptance by draft position, all requests",
        "Time to first token",
        "Time per output token",
        "End-to-end latency",
    ]
    losses = [title.partition(":")[0] for title in titles[6:]]
    assert {"answers", "errors", "ttft", "e2e_tail", "survival/1", "speed_up/low"} <= set(losses)


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("is_dark", [False, True])
def test_nothing_sticks_out_and_all_text_can_be_read(
    browser: Browser, pages: dict[str, Path], is_dark: bool, width: int
) -> None:
    browser.open(pages["failed"], is_dark, width)
    assert browser.value("document.documentElement.scrollWidth") <= width
    ground, text = (
        sum(
            map(
                int,
                browser.value(f"getComputedStyle(document.documentElement).{of}.match(/\\d+/g).slice(0, 3)"),
            )
        )
        for of in ("backgroundColor", "color")
    )
    assert text > 600 if is_dark else text < 150, (ground, text)


def test_texts_are_shown_as_they_are(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failed"])
    shown: Any = browser.value(
        "Array.from(document.querySelectorAll('.sides pre'), each => each.textContent)"
    )
    assert shown == [
        FAILED.divergences[0]["expected_text"],
        FAILED.divergences[0]["candidate_text"],
        "one(ends here)",
        "one two",
    ]
    assert browser.value(
        "Array.from(document.querySelectorAll('.sides > div'), each => each.firstChild.textContent)"
    ) == ["Stable:", "Candidate:", "The candidate's target alone:", "Candidate:"]
    marked = browser.value("Array.from(document.querySelectorAll('mark'), each => each.textContent)")
    assert marked[1] == "write_text()"


def test_the_browser_detects_defects(browser: Browser, tmp_path: Path) -> None:
    """Negative control of the tests above."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<img src='gone.png'><script>console.error('x'); undefinedName()</script>", encoding="utf-8"
    )
    browser.complaints.clear()
    browser.open(page)
    kinds = {complaint.split()[0] for complaint in browser.complaints}
    assert {"console:", "exception:", "log:", "asked"} <= kinds
