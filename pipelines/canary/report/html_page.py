"""Render the report of a rollout as one HTML page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pipelines.bench.reporting import chart
from pipelines.bench.reporting.page import render
from pipelines.canary.report.plots import charts_of, evidence_chart
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.report.rollout_report import CanaryReport

_MOST_DIVERGENCES = 20
_EXPECTED_OF = {"stable": "Stable", "own_target": "The candidate's target alone", "itself": "Its chunks"}


@dataclass(frozen=True)
class Divergence:
    """Two different answers to one prompt.

    Attributes:
        title: First difference.
        prompt: Prompt of both answers.
        common: Common start of both texts.
        expected_of: Source of the right answer.
        expected: Rest of the right answer.
        candidate: Rest of the candidate's answer.
        said: Differing values of both answers if the texts do not show them, else "".
    """

    title: str
    prompt: str
    common: str
    expected_of: str
    expected: str
    candidate: str
    said: tuple[str, str]


@dataclass(frozen=True)
class Change:
    """One transition as text.

    Attributes:
        minutes: Minutes since the rollout began.
        from_phase: Phase before.
        to_phase: Phase after.
        reason: Reason in a sentence.
        weights: Weights from then on.
        evidence: Evidence as indented JSON.
    """

    minutes: str
    from_phase: str
    to_phase: str
    reason: str
    weights: str
    evidence: str


def as_html(report: CanaryReport, conditions: dict[str, Any]) -> str:
    """Render the page.

    Args:
        report: Report to render.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
    """
    return render(
        "canary.html",
        record=report.record,
        judgement=report.judgement,
        sections=report.sections,
        charts=charts_of(report.record),
        evidence=[evidence_chart(each.judged, each.seen) for each in report.evidence if each.seen],
        unseen=[each.judged.metric.name for each in report.evidence if not each.seen],
        changes=_changes(report.record),
        divergences=list(map(_divergence, report.record.divergences[:_MOST_DIVERGENCES])),
        conditions=conditions,
        frame=chart,
    )


def _changes(record: RolloutRecord) -> list[Change]:
    return [
        Change(
            f"{(each.at_s - record.began_at_s) / 60:.1f}",
            each.from_phase,
            each.to_phase,
            each.reason,
            ", ".join(f"{arm} {weight:.1%}" for arm, weight in each.weights.items()),
            json.dumps(each.evidence, indent=1, ensure_ascii=False) if each.evidence else "",
        )
        for each in record.transitions
    ]


def _divergence(found: dict[str, Any]) -> Divergence:
    expected, candidate = found["expected_text"], found["candidate_text"]
    pairs = enumerate(zip(expected, candidate, strict=False))
    shorter = min(len(expected), len(candidate))
    start = next((place for place, (ours, theirs) in pairs if ours != theirs), shorter)
    differs_in = found["differs_in"]
    title = f"From token {found['first_difference']} on" if differs_in == "tokens" else differs_in
    return Divergence(
        title,
        found["prompt"],
        expected[:start],
        _EXPECTED_OF[found["expected_of"]],
        expected[start:],
        candidate[start:],
        (found["expected"], found["candidate"]),
    )
