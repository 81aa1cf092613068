"""The report of a rollout: what was decided, by what evidence, and how surely faults would be found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pipelines.canary.analysis.faults import DRILLS, NO_FAULT
from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.analysis.quantiles import nearest_rank
from pipelines.canary.analysis.sections import analysis_section, simulation_section
from pipelines.canary.analysis.sequences import Bounds, sequence
from pipelines.canary.analysis.simulation import Plan, looks, simulate
from pipelines.canary.analysis.verdict import Judged, analyse
from pipelines.canary.baseline_losses import probes_section
from pipelines.canary.plots import ARMS, acceptance_by_position
from pipelines.canary.record import LEAVING, Judgement, RolloutRecord, is_waiting, judgement
from pipelines.errors import CanaryError
from pipelines.routing.arms import Arm
from pipelines.validation.section import Section, Table

_FIRST_LOOK = 10
_MOST_LOOKS = 16
_PERCENTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Evidence:
    """One loss as it was seen over the rollout.

    Attributes:
        judged: As it is now.
        seen: Its bounds after more and more trials, where there was an estimate; may be empty.
    """

    judged: Judged
    seen: tuple[Bounds, ...]


@dataclass(frozen=True)
class CanaryReport:
    """All that page and document show.

    Attributes:
        record: Of the rollout.
        judgement: What it amounts to.
        sections: In the order in which they are read.
        evidence: In the order of ``metrics_of``.
    """

    record: RolloutRecord
    judgement: Judgement
    sections: tuple[Section, ...]
    evidence: tuple[Evidence, ...]


def report_of(record: RolloutRecord, plan: Plan | None = None) -> CanaryReport:
    """Make the report.

    Args:
        record: A rollout that has observed a request, or that was given up or waits for a person before.
        plan: How much is simulated on its requests; None for nothing.

    Raises:
        CanaryError: There is nothing to report, or as ``analyse``.
    """
    if not record.requests and record.phase not in LEAVING and not is_waiting(record):
        raise CanaryError(
            "there is nothing to report",
            values=f"rollout {record.canary_id} is in {record.phase} and has observed no request",
            limit="one request, or a reason for which it was given up or waits for a person",
            remedy="let requests through the router first",
        )
    analysis = analyse(record.requests, record.limits, record.slo)
    sections = [analysis_section(analysis), _arms_section(record.requests)]
    sections += [
        probes_section(each.evidence) for each in record.transitions if each.evidence.get("baseline")
    ]
    if plan is not None:
        sections.append(_simulated(record, plan))
    evidence = tuple(Evidence(judged, _seen(judged)) for judged in analysis.judged)
    return CanaryReport(record, judgement(record), tuple(sections), evidence)


def as_document(report: CanaryReport, conditions: dict[str, Any]) -> dict[str, Any]:
    """The report, ready for JSON; of requests only what they amount to.

    Args:
        report: What is shown.
        conditions: From ``pipelines.conditions``.
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


def _simulated(record: RolloutRecord, plan: Plan) -> Section:
    """On the load bands in which both of the arms were observed that stand for a rollout."""
    recorded = [each for each in record.requests if each.arm in ("stable", "control") and not each.is_replay]
    bands = {arm: {each.band for each in recorded if each.arm == arm} for arm in ("stable", "control")}
    both = bands["stable"] & bands["control"]
    left_out = sorted(bands["stable"] - both)
    if not both:
        return Section(
            "False alarms and detection, by simulation on recorded requests",
            "info",
            "Not simulated: the stable pair and the target alone were never observed in the same load band.",
        )
    chosen = [each for each in recorded if each.band in both]
    simulations = [simulate(chosen, fault, record.limits, record.slo, plan) for fault in (NO_FAULT, *DRILLS)]
    section = simulation_section(simulations)
    given_up = f" A rollout was given up after {plan.max_pairs} pairs."
    without = f" Without load band {', '.join(left_out)}: no request of the control." if left_out else ""
    return replace(section, summary=section.summary + given_up + without)


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
        "Times are of answered requests, without replays, as the router saw them. What was accepted depends "
        "on how much was drafted, and that on the load: two arms are compared by their matched rounds above."
    )
    return Section("What each arm answered", "info", summary, Table(columns, tuple(rows)))


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
        "compared": sum(bool(request.tokens) for request in own),
        "differ": sum(request.tokens in ("diverged", "unknown") for request in own),
        "draft_tokens_per_round": drafted / rounds if rounds else None,
        "acceptance_rate": accepted / drafted if drafted else None,
        "mean_acceptance_length": 1 + accepted / rounds if rounds else None,
        "acceptance_by_position": acceptance_by_position(own, arm),
        "ttft_ms": _percentiles([request.ttft_s for request in asked]),
        "itl_ms": _percentiles([request.itl_s for request in asked]),
        "e2e_latency_ms": _percentiles([request.e2e_latency_s for request in asked]),
    }


def _percentiles(times_s: Sequence[float | None]) -> list[float | None]:
    """In milliseconds, at ``_PERCENTILES``."""
    known = np.array([1000 * time_s for time_s in times_s if time_s is not None], np.float64)
    return [nearest_rank(known, share) if len(known) else None for share in _PERCENTILES]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
