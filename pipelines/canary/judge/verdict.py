"""The verdict on a candidate: pass, fail, or inconclusive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.canary.judge.e_values import adjusted
from pipelines.canary.judge.limits import Limits, Slo
from pipelines.canary.judge.measures import Bounds, bounds
from pipelines.canary.judge.metrics import Metric, metrics_of
from pipelines.canary.judge.resources import Sample
from pipelines.program import Verdict
from pipelines.router.observation import Observation

Action = Literal["promote", "roll_back", "hold", "go_on"]


@dataclass(frozen=True)
class Judged:
    """Verdict on one metric.

    Attributes:
        metric: Metric that was judged.
        verdict: ``fail`` if the regression is above ``rollback_above``, ``pass`` if below ``pass_below``.
        needs_review: Whether the metric is inconclusive and above ``pass_below``, so that more requests will
            not make it pass.
        log_harm: Natural logarithm of the evidence that the regression is above ``rollback_above``, adjusted
            for all metrics; -inf if the metric is not tested.
        limits: Limits it was judged by.
    """

    metric: Metric
    verdict: Verdict
    needs_review: bool
    log_harm: float
    limits: Limits

    @property
    def word(self) -> str:
        """Verdict for people, with ``needs review`` for a kind of inconclusive."""
        return "needs review" if self.needs_review else self.verdict

    @property
    def named(self) -> str:
        """Name of the metric, with its detail in parentheses."""
        metric = self.metric
        return f"{metric.name} ({metric.detail})" if metric.detail else metric.name

    @property
    def bounds(self) -> Bounds:
        """Bounds of the regression; each holds at all times together with ``Limits.confidence``."""
        return bounds(self.metric.measure, self.limits.confidence)


@dataclass(frozen=True)
class Analysis:
    """Verdicts on all metrics of a candidate.

    Attributes:
        judged: Verdicts in the order of ``metrics_of``.
    """

    judged: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of ``fail``, ``inconclusive`` and ``pass``; inconclusive without metrics."""
        words = {each.verdict for each in self.judged} or {"inconclusive"}
        return "fail" if "fail" in words else "inconclusive" if "inconclusive" in words else "pass"

    @property
    def action(self) -> Action:
        """Action that follows from the verdict."""
        if self.verdict == "inconclusive":
            return "hold" if any(each.needs_review for each in self.judged) else "go_on"
        return "promote" if self.verdict == "pass" else "roll_back"

    @property
    def needs_replays(self) -> bool:
        """Whether a metric that only replays can decide, such as equal tokens, has not passed."""
        return any(each.metric.by_replays and each.verdict != "pass" for each in self.judged)

    @property
    def lacks_answers(self) -> bool:
        """Whether too few answers could be compared to judge them."""
        return any(
            each.metric.name == "answers"
            and each.metric.measure.num < _least_trials(each.metric, each.limits)
            for each in self.judged
        )

    @property
    def reason(self) -> str:
        """Metrics behind the verdict: those that fail, else those that do not pass; "" if all pass."""
        named: dict[str, list[str]] = {}
        for each in self.judged:
            named.setdefault(each.word, []).append(each.named)
        words = ("fail",) if "fail" in named else ("needs review", "inconclusive")
        return "; ".join(f"{word}: {', '.join(named[word])}" for word in words if word in named)


def analyse(
    requests: Sequence[Observation], limits: Limits, slo: Slo, samples: Sequence[Sample] | None = None
) -> Analysis:
    """Judge a candidate by all requests since the rollout began; may be called at any time.

    Args:
        requests: Requests of all arms without gaps: all that arrived before the last of them. Those that are
            still running are the slow ones.
        limits: Limits of the candidate's regressions.
        slo: Service-level objective of a good request.
        samples: Memory and CPU time, as for ``metrics_of``.
    """
    return judge(metrics_of(requests, limits, slo, samples), limits)


def judge(metrics: Sequence[Metric], limits: Limits) -> Analysis:
    """Judge metrics together.

    ``fail`` is corrected for their number: a candidate that exceeds no limit fails with probability alpha at
    most over all metrics. ``pass`` needs no correction because all metrics must pass: a candidate that has
    reached a limit passes only if the test of that metric errs.
    """
    tested = [metric for metric in metrics if metric.is_tested]
    harms = iter(adjusted([_harm(metric, limits) for metric in tested]))
    return Analysis(
        tuple(_judge(metric, next(harms) if metric.is_tested else -math.inf, limits) for metric in metrics)
    )


def _judge(metric: Metric, harm: float, limits: Limits) -> Judged:
    measure = metric.measure
    verdict: Verdict = "inconclusive"
    needs_review = False
    estimate = measure.estimate
    if harm >= _needed(limits.alpha) or (metric.is_exact and estimate):
        verdict = "fail"
    elif metric.is_measured:
        if estimate is not None and estimate > metric.limit.rollback_above:
            verdict = "fail"
        elif estimate is not None and estimate < metric.limit.pass_below:
            verdict = "pass"
        needs_review = verdict == "inconclusive" and estimate is not None
    elif measure.num >= _least_trials(metric, limits):
        needed = _needed(1 - limits.confidence)
        if measure.log_evidence("below", metric.limit.pass_below) >= needed:
            verdict = "pass"
        else:
            limit = metric.limit.pass_below if metric.review_above is None else metric.review_above
            needs_review = measure.log_evidence("above", limit) >= needed
    return Judged(metric, verdict, needs_review, harm, limits)


def _harm(metric: Metric, limits: Limits) -> float:
    if metric.measure.num < _least_trials(metric, limits):
        return -math.inf
    return metric.measure.log_evidence("above", metric.limit.rollback_above)


def _least_trials(metric: Metric, limits: Limits) -> int:
    return limits.min_requests if metric.least_trials is None else metric.least_trials


def _needed(alpha: float) -> float:
    return -math.log(alpha)
