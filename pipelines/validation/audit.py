"""The first-divergence audit for servers whose kernels depend on the batch.

The control answers one request at a time (the reference), then concurrent requests (A/A), whose differences
are the noise of such kernels. The candidate has the same load.

There even the target alone does not always return the same tokens, so equality is too strict. Instead each
first difference is classified as a tie if the margin between its two tokens is as small as those at which
the target alone differs from itself (``noise_floor``). An unknown margin is never a tie. A candidate

- passes if the upper bound of its rate of non-ties per prompt (including unknown margins) is below a limit
  and its rate of ties is not much higher than that of the target alone;
- fails if one of these is refuted, or if a margin is larger than noise or any rounding explains, or a
  difference is none of tokens, such as an error;
- is inconclusive otherwise; the report then says how many prompts would decide.

Where nothing depends on the batch, equality can be required: then each difference fails.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.bench.reporting.rates import detection_probability, lower_bound, upper_bound
from pipelines.bench.reporting.section import Section, Verdict
from pipelines.validation.differences import Comparison, Difference, table_of
from pipelines.validation.noise_floor import (
    LARGEST_ROUNDING,
    rate_difference_bounds,
    surprise,
    tie_limit,
)

ALPHA = 1e-3
"""Probability that a correct candidate fails, over all comparisons and reasons of a report."""
CONFIDENCE = 0.95
NON_TIE_LIMIT = 0.01
"""Limit of the share of prompts with a non-tie, which 299 prompts without one show."""
TIE_RISE_LIMIT = 0.05
"""Limit of the rate of ties less that of the target alone."""

_NUM_AUDITS = 2  # of plain answers and of features; they share ALPHA
_NUM_REASONS = 3  # to fail by chance

_KINDS = ("non-tie", "unknown", "tie")


@dataclass(frozen=True)
class Audit:
    """All comparisons of an audit.

    Attributes:
        noise: The control under the load of the candidate.
        candidates: The candidate, once for each load.
    """

    noise: Comparison
    candidates: tuple[Comparison, ...]


@dataclass(frozen=True)
class _Count:
    """Counts of the prompts that could be compared both for a candidate and for the noise."""

    num_prompts: int
    by_kind: Mapping[str, list[Difference]]
    num_tie_here_only: int
    num_noise_only: int

    def num(self, kind: str) -> int:
        return len(self.by_kind[kind])


def known_margins(compared: Comparison) -> list[float]:
    """Return the absolute margins of differences that are known and finite."""
    sizes = [difference.size for difference in compared.found]
    return [size for size in sizes if size is not None and math.isfinite(size)]


def judge(audit: Audit, *, exact: bool = False) -> list[Section]:
    """Judge every candidate against the noise floor.

    Args:
        audit: What was compared.
        exact: Whether every difference fails, however small its margin.

    Returns:
        The noise floor, which is not judged, and one section for each candidate.
    """
    noise = audit.noise
    if exact:  # as if the target alone never differed from itself
        noise = Comparison(noise.name, (None,) * len(noise.differences), frozenset())
    alpha = ALPHA / (_NUM_REASONS * len(audit.candidates) * _NUM_AUDITS)  # Bonferroni's
    judged = [_judge(each, noise, alpha, exact) for each in audit.candidates]
    return [_noise_section(audit.noise), *judged]


def _count(compared: Comparison, noise: Comparison, limit: float) -> _Count:
    by_kind: dict[str, list[Difference]] = {kind: [] for kind in _KINDS}
    num_prompts = num_tie_here_only = num_noise_only = 0
    for index, (difference, noisy) in enumerate(zip(compared.differences, noise.differences, strict=True)):
        if index in compared.missing or index in noise.missing:
            continue
        num_prompts += 1
        is_tie = False
        if difference is not None:
            kind = _kind(difference, limit)
            by_kind[kind].append(difference)
            is_tie = kind == "tie"
        num_tie_here_only += is_tie and noisy is None
        num_noise_only += noisy is not None and not is_tie
    return _Count(num_prompts, by_kind, num_tie_here_only, num_noise_only)


def _kind(difference: Difference, limit: float) -> str:
    if difference.size is None:
        return "unknown"
    return "tie" if difference.size <= limit else "non-tie"


def _judge(compared: Comparison, noise: Comparison, alpha: float, exact: bool) -> Section:
    noise_margins = known_margins(noise)
    limit = tie_limit(noise_margins)
    count = _count(compared, noise, limit)
    num_prompts = count.num_prompts
    title = f"{'Equality' if exact else 'First-divergence audit'}: {compared.name}"
    if not num_prompts:
        return Section(title, "inconclusive", "no prompt could be compared")
    num_suspect = count.num("non-tie") + count.num("unknown")
    num_equal = num_prompts - num_suspect - count.num("tie")
    upper = upper_bound(num_suspect, num_prompts, CONFIDENCE)
    pair = count.num_tie_here_only, count.num_noise_only, num_prompts
    _, rise = rate_difference_bounds(*pair, CONFIDENCE)
    faults = ["nothing was drafted, so nothing was tested"] if compared.num_drafted == 0 else []
    if exact and compared.found:
        faults.append(f"{len(compared.found)} answers differ from the target's own")
    sizes = [difference.size or 0.0 for difference in count.by_kind["non-tie"]]
    if num_certain := sum(size > LARGEST_ROUNDING for size in sizes):
        faults.append(f"{num_certain} of {num_prompts} answers differ by more than any rounding")
    lower = lower_bound(count.num("non-tie"), num_prompts, 1 - alpha)
    if lower > NON_TIE_LIMIT:
        faults.append(f"non-ties in more than {lower:.2%} of prompts")
    if proven_rise := max(0.0, rate_difference_bounds(*pair, 1 - alpha)[0] - TIE_RISE_LIMIT):
        faults.append(f"ties are more frequent than in the target alone, {proven_rise:.1%} beyond the limit")
    worst = max((size for size in sizes if size <= LARGEST_ROUNDING), default=0.0)
    chance = surprise(worst, noise_margins)
    if chance * max(1, len(sizes)) <= alpha:
        faults.append(f"a margin of {worst:.3g} is beyond what noise explains (p = {chance:.1g})")
    doubts = [f"{len(compared.missing)} prompts could not be compared"] if compared.missing else []
    if upper > NON_TIE_LIMIT:
        needed = _prompts_for(num_suspect)
        doubts.append(f"about {needed} prompts without a further non-tie would bound their rate")
    if rise > TIE_RISE_LIMIT:
        doubts.append(_tie_prompts_needed(count))
    verdict: Verdict = "fail" if faults else "inconclusive" if doubts else "pass"
    reasons = f"{'; '.join(faults or doubts)}. " if faults or doubts else ""
    summary = (
        f"{reasons}{num_prompts} prompts: {num_equal} equal, {count.num('tie')} ties, "
        f"{count.num('non-tie')} non-ties, {count.num('unknown')} of unknown margin. Non-ties and unknown "
        f"margins in less than {upper:.2%} of prompts (limit {NON_TIE_LIMIT:.2%}); ties above those of the "
        f"target alone by less than {rise:.2%} (limit {TIE_RISE_LIMIT:.2%}); confidence {CONFIDENCE:.0%}."
    )
    document = {
        "prompts": num_prompts,
        "equal": num_equal,
        "ties": count.num("tie"),
        "non_ties": count.num("non-tie"),
        "unknown": count.num("unknown"),
        "missing": len(compared.missing),
        "tie_limit": limit,
        "non_tie_rate_upper_bound": upper,
        "tie_rise_upper_bound": rise,
        "draft_tokens": compared.num_drafted,
        "alpha": ALPHA,
        "confidence": CONFIDENCE,
    }
    listed = [(difference, kind) for kind in _KINDS for difference in count.by_kind[kind]]
    return Section(title, verdict, summary, table_of(listed), _power(num_prompts), document)


def _prompts_for(num_events: int) -> int:
    """Find the smallest number of prompts that bounds the rate of so many events below the limit."""
    numbers = itertools.count(max(1, num_events))
    return next(each for each in numbers if upper_bound(num_events, each, CONFIDENCE) <= NON_TIE_LIMIT)


def _tie_prompts_needed(count: _Count) -> str:
    """Say how many prompts bound the rise below the limit if the observed rates stay the same."""
    for factor in (2**step for step in range(1, 20)):
        pair = count.num_tie_here_only * factor, count.num_noise_only * factor
        if rate_difference_bounds(*pair, count.num_prompts * factor, CONFIDENCE)[1] <= TIE_RISE_LIMIT:
            return (
                f"about {count.num_prompts * factor} prompts would show that ties are not much more frequent"
            )
    return "ties are more frequent than in the target alone, by about the limit or more"


def _power(num_prompts: int) -> str:
    rates = (0.003, 0.01, 0.03)
    seen = ", ".join(f"{rate:.1%}: {detection_probability(rate, num_prompts):.3f}" for rate in rates)
    smallest = upper_bound(0, num_prompts, CONFIDENCE)
    return (
        f"Probability that {num_prompts} prompts detect a fault that affects a share of prompts: {seen}. "
        f"Smallest share detected with {CONFIDENCE:.0%}: {smallest:.2%}."
    )


def _noise_section(noise: Comparison) -> Section:
    margins = known_margins(noise)
    limit = tie_limit(margins)
    rule = (
        f"a tie is a margin of at most {limit:.4g} (natural log), from {len(margins)} known margins"
        if margins
        else "without a known margin no difference counts as a tie; more prompts or a higher load would show "
        "the noise, if there is any"
    )
    num_prompts = len(noise.differences) - len(noise.missing)
    summary = (
        f"{noise.name} differs from single requests in {len(noise.found)} of {num_prompts} prompts; {rule}."
    )
    document = {"prompts": num_prompts, "differ": len(noise.found), "margins": margins, "tie_limit": limit}
    table = table_of([(difference, "noise") for difference in noise.found])
    return Section("Noise floor: the target alone twice", "info", summary, table, document=document)
