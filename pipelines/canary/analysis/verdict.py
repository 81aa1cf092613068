"""What the losses of a candidate amount to: pass, fail, or what is still needed to know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pipelines.bench.slo import Slo
from pipelines.canary.analysis.family import adjusted
from pipelines.canary.analysis.limits import Limits
from pipelines.canary.analysis.metrics import Metric, metrics_of
from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.analysis.sequences import Bounds, bounds, trials_lacking

Word = Literal["pass", "fail", "inconclusive"]
Action = Literal["promote", "roll_back", "hold", "go_on"]


@dataclass(frozen=True)
class Judged:
    """One loss, judged.

    Attributes:
        metric: What was judged.
        verdict: ``fail``: the loss is above ``rollback_above``; ``pass``: below ``pass_below``.
        is_held: Inconclusive, and above ``pass_below``: more requests will not let it pass.
        log_harm: Natural logarithm of the evidence that it is above ``rollback_above``, adjusted for all
            losses; -inf where it is not asked for.
        limits: By which.
        num_tested: Losses that are tested together.
    """

    metric: Metric
    verdict: Word
    is_held: bool
    log_harm: float
    limits: Limits
    num_tested: int

    @property
    def bounds(self) -> Bounds:
        """Where the loss lies; both bounds hold with ``Limits.confidence`` at all times together."""
        return bounds(self.metric.measure, self.limits.confidence)

    @property
    def still_needed(self) -> int | None:
        """Trials more until the verdict, if they go on as those so far; 0 if there is one.

        None if no number would do: the loss seen is between both limits.
        """
        if self.verdict != "inconclusive":
            return 0
        measure, limit = self.metric.measure, self.metric.limit
        missing = max(0, self.limits.min_requests - measure.num)
        if not measure.num:
            return missing
        ways = [trials_lacking(measure, "below", limit.pass_below, _needed(1 - self.limits.confidence))]
        if not self.metric.is_exact:
            enough = _needed(self.limits.alpha / self.num_tested)  # whatever the others say
            ways.append(trials_lacking(measure, "above", limit.rollback_above, enough))
        known = [way for way in ways if way is not None]
        return max(missing, min(known)) if known else None


@dataclass(frozen=True)
class Analysis:
    """All losses, judged together.

    Attributes:
        judged: In the order of ``metrics_of``.
    """

    judged: tuple[Judged, ...]

    @property
    def verdict(self) -> Word:
        """``fail`` beats ``inconclusive``, and that beats ``pass``; nothing judged is inconclusive."""
        words = {each.verdict for each in self.judged} or {"inconclusive"}
        return "fail" if "fail" in words else "inconclusive" if "inconclusive" in words else "pass"

    @property
    def action(self) -> Action:
        """What follows."""
        if self.verdict == "inconclusive":
            return "hold" if any(each.is_held for each in self.judged) else "go_on"
        return "promote" if self.verdict == "pass" else "roll_back"

    @property
    def still_needed(self) -> int | None:
        """Trials more until every loss has its verdict; None if no number would do."""
        needed = [each.still_needed for each in self.judged]
        known = [each for each in needed if each is not None]
        return max(known, default=0) if len(known) == len(needed) else None


def analyse(requests: Sequence[ObservedRequest], limits: Limits, slo: Slo) -> Analysis:
    """Judge a candidate by all requests since the rollout began; as often as one likes.

    Args:
        requests: Of all arms, without holes (``ObservedRequest``).
        limits: What may be lost.
        slo: What a good request is.

    Raises:
        CanaryError: As ``metrics_of``.
    """
    return judge(metrics_of(requests, limits, slo), limits)


def judge(metrics: Sequence[Metric], limits: Limits) -> Analysis:
    """Judge losses together.

    ``fail`` is corrected for their number: a candidate that exceeds no limit fails with probability alpha at
    most over all of them. ``pass`` needs no correction, since all must pass: one that has reached a limit
    passes only if that very limit errs.
    """
    tested = [metric for metric in metrics if not metric.is_exact]
    harms = iter(adjusted([_harm(metric, limits) for metric in tested]))
    return Analysis(
        tuple(
            _judge(metric, -math.inf if metric.is_exact else next(harms), limits, len(tested))
            for metric in metrics
        )
    )


def _judge(metric: Metric, harm: float, limits: Limits, num_tested: int) -> Judged:
    measure = metric.measure
    verdict: Word = "inconclusive"
    is_held = False
    if harm >= _needed(limits.alpha) or (metric.is_exact and measure.estimate):
        verdict = "fail"
    elif measure.num >= limits.min_requests:
        needed = _needed(1 - limits.confidence)
        if measure.log_evidence("below", metric.limit.pass_below) >= needed:
            verdict = "pass"
        else:
            is_held = measure.log_evidence("above", metric.limit.pass_below) >= needed
    return Judged(metric, verdict, is_held, harm, limits, num_tested)


def _harm(metric: Metric, limits: Limits) -> float:
    if metric.measure.num < limits.min_requests:
        return -math.inf
    return metric.measure.log_evidence("above", metric.limit.rollback_above)


def _needed(alpha: float) -> float:
    return -math.log(alpha)
