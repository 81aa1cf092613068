"""Build the report of a rollout: its decisions, the evidence behind them, and the figures of each arm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipelines.bench.reporting.section import Section, Table
from pipelines.canary.checks.acceptance import probes_section
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.quantiles import nearest_rank
from pipelines.canary.judge.sequences import Bounds, looks, sequence
from pipelines.canary.judge.verdict import Judged, analyse
from pipelines.canary.report.plots import ARMS, acceptance_by_position
from pipelines.canary.report.record import LEAVING, Judgement, RolloutRecord, is_waiting, judgement
from pipelines.canary.report.sections import analysis_section, faults_section
from pipelines.errors import CanaryError
from pipelines.router.arms import Arm

_FIRST_LOOK = 10
_MOST_LOOKS = 16
_PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Evidence:
    """Evidence for one metric over the rollout.

    Attributes:
        judged: Current verdict on the metric.
        seen: Bounds after increasing numbers of trials that have an estimate; may be empty.
    """

    judged: Judged
    seen: tuple[Bounds, ...]


@dataclass(frozen=True)
class CanaryReport:
    """Content of the report, for page and JSON.

    Attributes:
        record: Record of the rollout.
        judgement: Judgement of the rollout.
        sections: Sections in their order on the page.
        evidence: Evidence for each metric in the order of ``metrics_of``.
    """

    record: RolloutRecord
    judgement: Judgement
    sections: tuple[Section, ...]
    evidence: tuple[Evidence, ...]


def report_of(record: RolloutRecord) -> CanaryReport:
    """Build the report of a rollout.

    Args:
        record: Record of a rollout that has a request, or was rolled back or needs review before the first.

    Raises:
        CanaryError: There is nothing to report, or as for ``analyse``.
    """
    if not record.requests and record.phase not in LEAVING and not is_waiting(record):
        raise CanaryError(
            "there is nothing to report",
            values=f"rollout {record.canary_id} is in phase {record.phase} without a request",
            limit="at least one request, or a candidate that was rolled back or needs review",
            remedy="send requests through the router first",
        )
    analysis = analyse(record.requests, record.limits, record.slo, record.samples)
    sections = [analysis_section(analysis), _arms_section(record.requests)]
    sections += faults_section(record.requests)
    sections += [
        probes_section(each.evidence) for each in record.transitions if each.evidence.get("baseline")
    ]
    evidence = tuple(Evidence(judged, _seen(judged)) for judged in analysis.judged)
    return CanaryReport(record, judgement(record), tuple(sections), evidence)


def as_document(report: CanaryReport, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the report ready for JSON, with figures instead of single requests.

    Args:
        report: Report to convert.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
    """
    record = report.record
    return {
        **asdict(report.judgement),
        "canary_id": record.canary_id,
        "recipe_stable": record.recipe_stable,
        "recipe_candidate": record.recipe_candidate,
        "began_at_s": record.began_at_s,
        "transitions": [asdict(transition) for transition in record.transitions],
        "arms": {arm: _figures(record.requests, arm) for arm in ARMS},
        "sections": [
            {"title": each.title, "verdict": each.verdict, "summary": each.summary, "figures": each.document}
            for each in report.sections
        ],
        "confidence_sequences": {
            each.judged.metric.name: [asdict(bounds) for bounds in each.seen] for each in report.evidence
        },
        "divergences": list(record.divergences),
        "conditions": conditions,
    }


def _seen(judged: Judged) -> tuple[Bounds, ...]:
    measure = judged.metric.measure
    nums = list(looks(_FIRST_LOOK, measure.num)) if measure.num > _FIRST_LOOK else [measure.num]
    chosen = sorted({nums[round(place)] for place in np.linspace(0, len(nums) - 1, _MOST_LOOKS)})
    found = sequence(measure, chosen, judged.limits.confidence)
    return tuple(each for each in found if each.estimate is not None and math.isfinite(each.estimate))


def _arms_section(requests: Sequence[ObservedRequest]) -> Section:
    columns = (
        *("arm", "requests", "replays", "errors", "timeouts", "compared", "differ"),
        *("drafted per round", "accepted", "length"),
        *(f"{name} p50/p90/p99 ms" for name in ("TTFT", "end-to-end")),
    )
    rows = []
    for arm in ARMS:
        figures = _figures(requests, arm)
        rows.append(
            (
                arm,
                *(
                    str(figures[key])
                    for key in ("requests", "replays", "errors", "timeouts", "compared", "differ")
                ),
                _number(figures["draft_tokens_per_round"], "{:.2f}"),
                _number(figures["acceptance_rate"], "{:.3f}"),
                _number(figures["mean_acceptance_length"], "{:.2f}"),
                *(
                    "/".join(_number(value, "{:.1f}") for value in figures[key])
                    for key in ("ttft_ms", "e2e_latency_ms")
                ),
            )
        )
    summary = (
        "Times are those of answered requests, without replays, as the router measured them. Acceptance "
        "depends on the draft length and that on the load; the matched rounds above compare two arms."
    )
    return Section("Figures of each arm", "info", summary, Table(columns, tuple(rows)))


def _figures(requests: Sequence[ObservedRequest], arm: Arm) -> dict[str, Any]:
    own = [request for request in requests if request.arm == arm]
    asked = [request for request in own if not request.is_replay]
    drafted = sum(request.total_draft_tokens for request in own)
    accepted = sum(request.total_accepted_draft_tokens for request in own)
    rounds = sum(request.num_rounds for request in own)
    return {
        "requests": len(asked),
        "replays": len(own) - len(asked),
        "errors": sum(request.failure == "error" for request in own),
        "timeouts": sum(request.failure == "timeout" for request in own),
        "compared": sum(bool(request.answer) for request in own),
        "differ": sum(request.answer in ("diverged", "unknown") for request in own),
        "draft_tokens_per_round": drafted / rounds if rounds else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        "acceptance_by_position": acceptance_by_position(own, arm),
        "ttft_ms": _percentiles([request.ttft_s for request in asked]),
        "itl_ms": _percentiles([request.itl_s for request in asked]),
        "e2e_latency_ms": _percentiles([request.e2e_latency_s for request in asked]),
    }


def _percentiles(times_s: Sequence[float | None]) -> list[float | None]:
    """Compute ``_PERCENTILES`` in milliseconds."""
    known = np.array([1000 * time_s for time_s in times_s if time_s is not None], np.float64)
    return [nearest_rank(known, share) if len(known) else None for share in _PERCENTILES]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
