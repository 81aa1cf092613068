"""Show the analysis of a rollout as a section of its report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipelines.bench.reporting.section import Section, Table
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.verdict import Analysis, Judged

_METRIC_COLUMNS = (
    "metric",
    "verdict",
    "trials",
    "observed",
    "between",
    "passes below",
    "fails above",
    "still needed",
)


def analysis_section(analysis: Analysis) -> Section:
    """List every metric with its bounds, limits and verdict."""
    by_word = {
        word: [each.metric.name for each in analysis.judged if each.verdict == word]
        for word in ("fail", "inconclusive", "pass")
    }
    parts = [f"{word}: {', '.join(names)}" for word, names in by_word.items() if names]
    summary = f"{'; '.join(parts) or 'nothing was judged'}. {_next_action(analysis)}.{_not_judged(analysis)}"
    return Section(
        "Candidate compared with the stable pair and the target alone",
        analysis.verdict,
        summary,
        Table(_METRIC_COLUMNS, tuple(_row(each) for each in analysis.judged)),
        _terms(analysis),
        {
            "action": analysis.action,
            "still_needed": analysis.still_needed,
            "limits": asdict(analysis.judged[0].limits) if analysis.judged else None,
            "losses": [_document(each) for each in analysis.judged],
        },
    )


def faults_section(requests: Sequence[ObservedRequest]) -> list[Section]:
    """List what went wrong with requests, by arm; nothing if nothing was recorded."""
    counts = Counter((each.arm, each.fault, each.is_replay) for each in requests if each.fault)
    if not counts:
        return []
    rows = [
        (arm, fault, "replays" if is_replay else "requests", str(number))
        for (arm, fault, is_replay), number in sorted(counts.items())
    ]
    document = [dict(zip(("arm", "fault", "of", "number"), row, strict=True)) for row in rows]
    summary = f"{counts.total()} requests and replays without a whole answer. None of them counts as equal."
    table = Table(("arm", "what went wrong", "of", "number"), tuple(rows))
    return [Section("What went wrong", "info", summary, table, document={"faults": document})]


def _not_judged(analysis: Analysis) -> str:
    names = analysis.judged[0].limits.not_judged if analysis.judged else ()
    return f" Not judged, because the limits leave it out: {', '.join(names)}." if names else ""


def _next_action(analysis: Analysis) -> str:
    if analysis.verdict != "inconclusive":
        return {"promote": "The candidate can be promoted", "roll_back": "The candidate is rolled back"}[
            analysis.action
        ]
    needed = analysis.still_needed
    more = (
        "no number of further requests would decide"
        if needed is None
        else f"about {needed} more would decide"
    )
    review = " A metric above its pass limit needs review." if analysis.action == "hold" else ""
    return f"If requests continue as before, {more}.{review}".rstrip(".")


def _terms(analysis: Analysis) -> str:
    if not analysis.judged:
        return ""
    limits = analysis.judged[0].limits
    return (
        f"A candidate within all limits is ever rolled back with probability {limits.alpha:.2%} at most, "
        "however often the judge looks; one that has reached a limit is promoted with probability "
        f"{1 - limits.confidence:.1%} at most. Each bound holds at all times together with confidence "
        f"{limits.confidence:.0%}. Load bands and draft positions with less than {limits.least_share:.0%} of "
        "the candidate's requests are not judged, nor is acceptance if answers differ before anything was "
        f"drafted, as with another target. Memory is compared directly, from {limits.resources_s:g} s of "
        "service on; CPU time is compared in time slices in which both loops returned about the same number "
        "of tokens."
    )


def _row(each: Judged) -> tuple[str, ...]:
    bounds, limit = each.bounds, each.metric.limit
    seen = "-" if bounds.estimate is None else f"{bounds.estimate:+.2%}"
    needed = each.still_needed
    return (
        each.metric.name,
        each.word,
        str(bounds.num),
        seen,
        f"{bounds.low:+.2%} to {bounds.high:+.2%}",
        f"{limit.pass_below:+.2%}",
        "any" if each.metric.is_exact else f"{limit.rollback_above:+.2%}",
        "no number" if needed is None else str(needed),
    )


def _document(each: Judged) -> dict[str, Any]:
    bounds = each.bounds
    return {
        "loss": each.metric.name,
        "verdict": each.verdict,
        "is_held": each.needs_review,
        "trials": bounds.num,
        "estimate": _finite(bounds.estimate),
        "low": bounds.low,
        "high": bounds.high,
        "pass_below": each.metric.limit.pass_below,
        "rollback_above": None if each.metric.is_exact else each.metric.limit.rollback_above,
        "log_evidence_of_harm": _finite(each.log_harm),
        "still_needed": each.still_needed,
    }


def _finite(value: float | None) -> float | None:
    """Replace infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None
