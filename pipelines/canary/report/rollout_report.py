"""Build the report of a rollout as a JSON document: decisions, metrics, figures of each arm, differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipelines.canary.judge.measures import nearest_rank
from pipelines.canary.judge.metrics import severity
from pipelines.canary.judge.verdict import Analysis, Judged
from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.router.arms import Arm
from pipelines.router.observation import Observation

ARMS: tuple[Arm, ...] = ("stable", "candidate")

_NAMED = ("canary_id", "recipe_stable", "recipe_candidate", "began_at_s")

_PERCENTILES = (0.5, 0.9, 0.99)


def report_of(record: RolloutRecord, conditions: dict[str, Any]) -> dict[str, Any]:
    """Build the report of a rollout, with figures instead of single requests.

    Args:
        record: Record of the rollout.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
    """
    return {
        **asdict(judgement(record)),
        **{name: getattr(record.rollout, name) for name in _NAMED},
        "transitions": [asdict(transition) for transition in record.transitions],
        "evidence": analysis_document(record.analyse()),
        "arms": {arm: _figures(record, arm) for arm in ARMS},
        "faults": _faults(record.requests),
        "divergences": record.divergences,
        "conditions": conditions,
    }


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """Return every metric with its bounds, limits and verdict, ready for JSON."""
    return {
        "action": analysis.action,
        "limits": asdict(analysis.judged[0].limits) if analysis.judged else None,
        "losses": [_metric(each) for each in analysis.judged],
    }


def _metric(each: Judged) -> dict[str, Any]:
    bounds = each.bounds
    return {
        "loss": each.metric.name,
        "detail": each.metric.detail,
        "verdict": each.verdict,
        "is_held": each.needs_review,
        "trials": bounds.num,
        "estimate": _finite(bounds.estimate),
        "low": bounds.low,
        "high": bounds.high,
        "pass_below": each.metric.limit.pass_below,
        "rollback_above": None if each.metric.is_exact else each.metric.limit.rollback_above,
        "log_evidence_of_harm": _finite(each.log_harm),
    }


def _faults(requests: Sequence[Observation]) -> list[dict[str, Any]]:
    """Count what went wrong with requests, by arm."""
    counts = Counter((each.arm, each.fault, each.is_replay) for each in requests if each.fault)
    return [
        {"arm": arm, "fault": fault, "of": "replays" if is_replay else "requests", "number": number}
        for (arm, fault, is_replay), number in sorted(counts.items())
    ]


def _figures(record: RolloutRecord, arm: Arm) -> dict[str, Any]:
    """Return the figures of an arm; times are those of requests of clients, as the router measured them."""
    own = [request for request in record.requests if request.arm == arm]
    asked = [request for request in own if not request.is_replay]
    drafted = sum(sum(request.drafted_per_round) for request in own)
    accepted = sum(sum(request.accepted_per_round) for request in own)
    rounds = sum(len(request.drafted_per_round) for request in own)
    return {
        "requests": len(asked),
        "replays": len(own) - len(asked),
        "errors": sum(request.failure == "error" for request in own),
        "timeouts": sum(request.failure == "timeout" for request in own),
        "compared": sum(bool(request.answer) for request in own),
        "differ": sum(severity(request, record.rollout.limits) > 0 for request in own),
        "draft_tokens_per_round": drafted / rounds if rounds else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        "ttft_ms": _percentiles([request.ttft_s for request in asked]),
        "itl_ms": _percentiles([request.itl_s for request in asked]),
        "e2e_latency_ms": _percentiles([request.e2e_latency_s for request in asked]),
    }


def _percentiles(times_s: Sequence[float | None]) -> list[float | None]:
    """Compute ``_PERCENTILES`` in milliseconds."""
    known = np.array([1000 * time_s for time_s in times_s if time_s is not None], np.float64)
    return [nearest_rank(known, share) if len(known) else None for share in _PERCENTILES]


def _finite(value: float | None) -> float | None:
    """Replace infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
