"""The first-divergence audit for servers whose kernels depend on the batch.

The control answers one request at a time (the reference), then concurrent requests (A/A), whose differences
are the noise of such kernels. The candidate is asked in the same ways.

There even the target alone does not always return the same tokens, so equality is too strict. Instead each
first difference is classified as a tie if the margin between its two tokens is as small as those at which
the target alone differs from itself (``noise_floor``). An unknown margin is never a tie. A candidate

- passes if the upper bound of its rate of non-ties per question (including unknown margins) is below a limit
  and its rate of ties is not much higher than that of the target alone;
- fails if one of these is refuted, if its other differences, of all questions or of one kind, are more
  frequent than the control's own, if a margin is larger than noise or any rounding explains, or if a
  difference is none of tokens, as an error;
- is inconclusive otherwise; the report then says how many questions would decide.

Where nothing depends on the batch, equality can be required: then each difference fails.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.bench.reporting.rates import lower_bound, upper_bound
from pipelines.bench.reporting.section import Verdict
from pipelines.validation.differences import Comparison, Difference
from pipelines.validation.noise_floor import (
    LARGEST_ROUNDING,
    chance_of_more,
    rate_difference_bounds,
    surprise,
    tie_limit,
)

ALPHA = 1e-3
"""Probability that a correct candidate fails, over all comparisons and reasons of a report."""
CONFIDENCE = 0.95
NON_TIE_LIMIT = 0.01
"""Limit of the share of questions with a non-tie, which 299 questions without one show."""
TIE_RISE_LIMIT = 0.05
"""Limit of the rate of ties less that of the target alone."""

_NUM_AUDITS = 4  # of plain answers and of other kinds, alone and under load; they share ALPHA
_NUM_REASONS = 5  # to fail by chance
ALPHA_OF_REASON = ALPHA / (_NUM_AUDITS * _NUM_REASONS)

KINDS = ("fault", "non-tie", "unknown", "tie")
"""Kinds of differences, the worst first."""


@dataclass(frozen=True)
class Judged:
    """What an audit found.

    Attributes:
        name: What was compared.
        faults: Why the candidate fails; empty if it does not.
        doubts: Why it does not pass either.
        by_kind: Kind of difference -> the questions that have one.
        figures: Figures for machines.
    """

    name: str
    faults: tuple[str, ...]
    doubts: tuple[str, ...]
    by_kind: Mapping[str, tuple[int, ...]]
    figures: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """``fail``, or ``inconclusive`` if something is missing, or ``pass``."""
        return "fail" if self.faults else "inconclusive" if self.doubts else "pass"


def judge(
    name: str, compared: Comparison, noise: Comparison, *, exact: bool = False, kinds: Sequence[str] = ()
) -> Judged:
    """Judge answers of a candidate by the noise floor of the control.

    Args:
        name: What is compared.
        compared: The candidate beside the control, question by question.
        noise: The control beside itself, likewise.
        exact: Whether every difference fails, however small its margin.
        kinds: Kind of each question, where there are several: noise of one does not explain another.
    """
    excused = (None,) * len(noise.differences) if exact else noise.differences
    both = [
        (number, difference, noisy)
        for number, (difference, noisy) in enumerate(zip(compared.differences, excused, strict=True))
        if number not in compared.missing and number not in noise.missing
    ]
    margins = [each for _, _, noisy in both if (each := _finite_size(noisy)) is not None]
    limit = tie_limit(margins)
    by_kind: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for number, difference, _ in both:
        if difference is not None:
            by_kind[_kind(difference, limit)].append(number)
    ties = set(by_kind["tie"])
    num_noise = sum(noisy is not None for _, _, noisy in both)
    num_tie_here_only = sum(number in ties and noisy is None for number, _, noisy in both)
    num_noise_only = sum(number not in ties and noisy is not None for number, _, noisy in both)
    num = len(both)
    pair = num_tie_here_only, num_noise_only, max(1, num)
    num_suspect = sum(map(len, by_kind.values())) - len(ties)
    faults, doubts = [], []
    if by_kind["fault"]:
        faults.append(f"{len(by_kind['fault'])} of {num} answers differ by more than any rounding")
    if exact and num_suspect:
        faults.append(f"{num_suspect} answers differ from the control's")
    if (lower := lower_bound(len(by_kind["non-tie"]), max(1, num), 1 - ALPHA_OF_REASON)) > NON_TIE_LIMIT:
        faults.append(f"non-ties in more than {lower:.2%} of the answers")
    if num_suspect and chance_of_more(num_suspect, num, num_noise, num) <= ALPHA_OF_REASON:
        faults.append(f"{num_suspect} of {num} answers differ, and the control's own only in {num_noise}")
    suspects = {number for kind in KINDS[:-1] for number in by_kind[kind]}
    asked = defaultdict[str, list[tuple[bool, bool]]](list)
    for number, _, noisy in both if kinds else ():
        asked[kinds[number]].append((number in suspects, noisy is not None))
    for kind, seen in asked.items():
        differing, own = map(sum, zip(*seen, strict=True))
        if chance_of_more(differing, len(seen), own, len(seen)) * len(asked) <= ALPHA_OF_REASON:
            faults.append(f"{differing} of {len(seen)} {kind} differ, and the control's own only in {own}")
    if rise := max(0.0, rate_difference_bounds(*pair, 1 - ALPHA_OF_REASON)[0] - TIE_RISE_LIMIT):
        faults.append(f"ties are more frequent than in the control alone, {rise:.1%} beyond the limit")
    sizes = [_finite_size(compared.differences[number]) or 0.0 for number in by_kind["non-tie"]]
    worst = max(sizes, default=0.0)
    if (chance := surprise(worst, margins)) * max(1, len(sizes)) <= ALPHA_OF_REASON:
        faults.append(f"a margin of {worst:.3g} is beyond what noise explains (p = {chance:.1g})")
    if num_missing := len(compared.missing | noise.missing):
        doubts.append(f"{num_missing} answers could not be compared")
    upper = upper_bound(num_suspect, num, CONFIDENCE)
    if upper > NON_TIE_LIMIT:
        doubts.append(
            f"about {_needed(num_suspect)} such questions without a further difference would decide"
        )
    tie_rise = rate_difference_bounds(*pair, CONFIDENCE)[1]
    if tie_rise > TIE_RISE_LIMIT:
        doubts.append("too few questions to show that ties are not more frequent than the control's own")
    figures = {
        "questions": num,
        "equal": num - num_suspect - len(ties),
        **{kind: len(numbers) for kind, numbers in by_kind.items()},
        "control_differs": num_noise,
        "missing": num_missing,
        "needed": _needed(num_suspect),
        "tie_limit": limit,
        "non_tie_rate_upper_bound": upper,
        "tie_rise_upper_bound": tie_rise,
    }
    found = {kind: tuple(numbers) for kind, numbers in by_kind.items()}
    return Judged(name, tuple(faults), tuple(doubts), found, figures)


def _finite_size(difference: Difference | None) -> float | None:
    """Return the margin of a difference that is known and finite."""
    size = difference.size if difference else None
    return size if size is not None and math.isfinite(size) else None


def _kind(difference: Difference, limit: float | None) -> str:
    size = difference.size
    if size is not None and size > LARGEST_ROUNDING:
        return "fault"
    if size is None or limit is None:
        return "unknown"
    return "tie" if size <= limit else "non-tie"


def _needed(num_events: int) -> int:
    """Find the smallest number of questions that bounds the rate of so many events below the limit."""
    numbers = itertools.count(max(1, num_events))
    return next(each for each in numbers if upper_bound(num_events, each, CONFIDENCE) <= NON_TIE_LIMIT)
