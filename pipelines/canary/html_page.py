"""The report of a rollout as one page that needs nothing else: no script, no style sheet, no font."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from pipelines.bench import chart
from pipelines.canary.plots import charts_of, evidence_chart
from pipelines.canary.record import RolloutRecord
from pipelines.canary.report import CanaryReport

_TEMPLATES = Path(__file__).resolve().parent / "page"
_CHART_TEMPLATES = Path(chart.__file__).resolve().parent / "page"
_MOST_DIVERGENCES = 20
_EXPECTED_OF = {"stable": "Stable", "own_target": "The candidate's target alone"}


@dataclass(frozen=True)
class Divergence:
    """Two answers to one prompt.

    Attributes:
        prompt: What both were asked.
        common: How both begin.
        expected_of: Whose answer was right.
        expected: How that goes on.
        candidate: How the candidate's goes on.
        first_difference: Index of the first token that differs.
    """

    prompt: str
    common: str
    expected_of: str
    expected: str
    candidate: str
    first_difference: int


@dataclass(frozen=True)
class Change:
    """One transition as it is shown.

    Attributes:
        minutes: Since the rollout began.
        from_phase: Before.
        to_phase: After.
        reason: In a sentence.
        weights: From then on.
        evidence: As indented JSON.
    """

    minutes: str
    from_phase: str
    to_phase: str
    reason: str
    weights: str
    evidence: str


def as_html(report: CanaryReport, conditions: dict[str, Any]) -> str:
    """Make the page; every text is escaped, for prompts and answers are anything.

    Args:
        report: What is shown.
        conditions: From ``pipelines.conditions``.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_TEMPLATES, _CHART_TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("canary.html").render(
        record=report.record,
        judgement=report.judgement,
        sections=report.sections,
        charts=charts_of(report.record),
        evidence=[evidence_chart(each.judged, each.seen) for each in report.evidence if each.seen],
        unseen=[each.judged.metric.name for each in report.evidence if not each.seen],
        changes=_changes(report.record),
        divergences=_divergences(report.record.divergences[:_MOST_DIVERGENCES]),
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


def _divergences(found: Sequence[dict[str, Any]]) -> list[Divergence]:
    return [
        _divergence(
            each["prompt"],
            _EXPECTED_OF[each["expected_of"]],
            each["expected_text"],
            each["candidate_text"],
            each["first_difference"],
        )
        for each in found
    ]


def _divergence(
    prompt: str, expected_of: str, expected: str, candidate: str, first_difference: int
) -> Divergence:
    pairs = enumerate(zip(expected, candidate, strict=False))
    shorter = min(len(expected), len(candidate))
    start = next((place for place, (ours, theirs) in pairs if ours != theirs), shorter)
    return Divergence(
        prompt, expected[:start], expected_of, expected[start:], candidate[start:], first_difference
    )
