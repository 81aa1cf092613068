"""The analysis as parts of a report, in the form that the proofs of ``pipelines.validation`` have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pipelines.canary.analysis.simulation import Simulation
from pipelines.canary.analysis.verdict import Analysis, Judged
from pipelines.validation.section import Section, Table

_LOSS_COLUMNS = (
    "loss",
    "verdict",
    "trials",
    "seen",
    "between",
    "passes below",
    "fails above",
    "still needed",
)
_FAULT_COLUMNS = ("candidate", "rolled back", "promoted", "undecided", "by", "half by", "95 % by")


def analysis_section(analysis: Analysis) -> Section:
    """Every loss with its bounds, limits and verdict."""
    by_word = {
        word: [each.metric.name for each in analysis.judged if each.verdict == word]
        for word in ("fail", "inconclusive", "pass")
    }
    parts = [f"{word}: {', '.join(names)}" for word, names in by_word.items() if names]
    summary = f"{'; '.join(parts) or 'nothing was judged'}. {_what_follows(analysis)}."
    return Section(
        "Candidate beside the stable pair and the target alone",
        analysis.verdict,
        summary,
        Table(_LOSS_COLUMNS, tuple(_row(each) for each in analysis.judged)),
        _terms(analysis),
        {
            "action": analysis.action,
            "still_needed": analysis.still_needed,
            "limits": asdict(analysis.judged[0].limits) if analysis.judged else None,
            "losses": [_document(each) for each in analysis.judged],
        },
    )


def simulation_section(simulations: Sequence[Simulation]) -> Section:
    """What the analysis does with candidates whose faults are known; nothing is judged by it."""
    rows, entries = [], []
    for each in simulations:
        shares = [each.share(word) for word in ("fail", "pass", "inconclusive")]
        low, high = each.share_bounds("fail")
        half, most = (each.pairs_until("fail", share) for share in (0.5, 0.95))
        reasons = ", ".join(name for name, _ in each.reasons.most_common(2)) or "-"
        rolled_back = f"{shares[0]:.1%} ({low:.1%} to {high:.1%})"
        counts = ("-" if number is None else f"{number} pairs" for number in (half, most))
        rows.append((each.fault.name, rolled_back, f"{shares[1]:.1%}", f"{shares[2]:.1%}", reasons, *counts))
        entries.append(
            {
                "fault": each.fault.name,
                "runs": len(each.runs),
                "rolled_back": shares[0],
                "rolled_back_bounds": [low, high],
                "promoted": shares[1],
                "undecided": shares[2],
                "reasons": dict(each.reasons),
                "pairs_until_rollback": {"half": half, "95 %": most},
                "pairs_until_promotion": {
                    "half": each.pairs_until("pass", 0.5),
                    "95 %": each.pairs_until("pass", 0.95),
                },
            }
        )
    num_runs = len(simulations[0].runs) if simulations else 0
    return Section(
        "False alarms and detection, by simulation on recorded requests",
        "info",
        f"{num_runs} rollouts with each candidate, drawn from recorded requests and judged at every look. "
        "A pair is a request of the candidate and one of the stable pair.",
        Table(_FAULT_COLUMNS, tuple(rows)),
        document={"simulations": entries},
    )


def _what_follows(analysis: Analysis) -> str:
    if analysis.verdict != "inconclusive":
        return {"promote": "It can be promoted", "roll_back": "It is rolled back"}[analysis.action]
    needed = analysis.still_needed
    more = (
        "no number of requests more would decide" if needed is None else f"about {needed} more would decide"
    )
    held = " It is held: a loss is above what may pass." if analysis.action == "hold" else ""
    return f"If requests go on as those so far, {more}.{held}".rstrip(".")


def _terms(analysis: Analysis) -> str:
    if not analysis.judged:
        return ""
    limits = analysis.judged[0].limits
    return (
        f"A candidate within all limits is ever rolled back with probability {limits.alpha:.2%} at most, "
        f"however often one looks; one that has reached a limit is promoted with {1 - limits.confidence:.1%} "
        f"at most. Each bound holds at all times together with {limits.confidence:.0%}. Not judged are load "
        f"bands and draft positions of which fewer than {limits.least_share:.0%} of the candidate's requests "
        "tell, and acceptance where the answers part before anything was drafted, as another target's may."
    )


def _row(each: Judged) -> tuple[str, ...]:
    bounds, limit = each.bounds, each.metric.limit
    seen = "-" if bounds.estimate is None else f"{bounds.estimate:+.2%}"
    needed = each.still_needed
    return (
        each.metric.name,
        "held" if each.is_held else each.verdict,
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
        "is_held": each.is_held,
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
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
