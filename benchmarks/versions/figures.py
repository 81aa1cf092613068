"""Summarize pairs of measurements: medians with bootstrap intervals, as a table and as JSON.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13, for percentile intervals.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.versions.pairs import Pair, Setting
from pipelines.bench.blocks import CONFIDENCE, Interval
from pipelines.bench.measuring import Measurement
from pipelines.errors import VerificationError

_RESAMPLES = 10_000
# Even the range of fewer values contains their true median less often than the confidence says.
_LEAST_PAIRS = 6
_SEED = 0


@dataclass(frozen=True)
class SettingFigures:
    """Figures of one protocol at one load.

    Attributes:
        protocol: ``grpc`` or ``http``.
        num_at_once: Concurrent requests.
        num_pairs: Pairs of batches.
        tokens_per_s_before: Median of the batches of the commit.
        tokens_per_s_ratio: Median over the pairs, after divided by before.
        ttft_ms_before: Median over the batches of their median time to first token.
        ttft_ms_difference: Median over the pairs, after minus before.
    """

    protocol: str
    num_at_once: int
    num_pairs: int
    tokens_per_s_before: float
    tokens_per_s_ratio: Interval
    ttft_ms_before: float
    ttft_ms_difference: Interval


@dataclass(frozen=True)
class StartFigures:
    """Start-up times in seconds: median before, and median of the differences, after minus before."""

    num_pairs: int
    start_s_before: float
    start_s_difference: Interval


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of independent values with its 95 % percentile bootstrap interval."""
    rng = np.random.default_rng(_SEED)
    resampled = np.median(rng.choice(np.asarray(values), (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Interval(statistics.median(values), low, high)


def figures_of(pairs: Mapping[Setting, Sequence[Pair]]) -> list[SettingFigures]:
    """Summarize the pairs of every setting; raises VerificationError if a batch has no output."""
    return [_setting_figures(setting, measured) for setting, measured in pairs.items()]


def start_figures(times: Sequence[tuple[float, float]]) -> StartFigures:
    """Summarize pairs of start-up times, before and after."""
    return StartFigures(
        len(times),
        statistics.median(before for before, _ in times),
        median_interval([after - before for before, after in times]),
    )


def table(settings: Sequence[SettingFigures], starts: StartFigures) -> str:
    """Format the figures with one line per setting."""
    head = (
        f"{'':<22} {'tokens/s before':>15} {'after / before':>24} {'TTFT before':>12} {'after - before':>30}"
    )
    lines = [head, "-" * len(head)]
    lines += [
        f"{f'{each.protocol}, {each.num_at_once} concurrent':<22} {each.tokens_per_s_before:>15.1f} "
        f"{_cell(each.tokens_per_s_ratio, 3):>24} {f'{each.ttft_ms_before:.2f} ms':>12} "
        f"{_cell(each.ttft_ms_difference, 2, ' ms'):>30}"
        for each in settings
    ]
    lines.append(
        f"start-up: {starts.start_s_before:.2f} s before, after - before "
        f"{_cell(starts.start_s_difference, 2, ' s')}, {starts.num_pairs} pairs"
    )
    if starts.num_pairs < _LEAST_PAIRS:
        lines.append(f"the intervals are too narrow: {_LEAST_PAIRS} pairs at least, better 30")
    return "\n".join(lines)


def _setting_figures(setting: Setting, pairs: Sequence[Pair]) -> SettingFigures:
    ttft_ms = [(_ttft_ms(pair.before), _ttft_ms(pair.after)) for pair in pairs]
    return SettingFigures(
        protocol=setting.protocol,
        num_at_once=setting.load.num_at_once,
        num_pairs=len(pairs),
        tokens_per_s_before=statistics.median(pair.before.output_tokens_per_s for pair in pairs),
        tokens_per_s_ratio=median_interval(
            [pair.after.output_tokens_per_s / pair.before.output_tokens_per_s for pair in pairs]
        ),
        ttft_ms_before=statistics.median(before for before, _ in ttft_ms),
        ttft_ms_difference=median_interval([after - before for before, after in ttft_ms]),
    )


def _ttft_ms(measurement: Measurement) -> float:
    times_s = [answer.ttft_s for answer in measurement.generations if answer.ttft_s is not None]
    if not times_s:
        raise VerificationError(
            "a batch cannot be compared",
            values=f"{measurement.cell}: no output",
            limit="at least one output token in each batch",
            remedy="use prompts that the target answers with at least one token",
        )
    return 1e3 * statistics.median(times_s)


def _cell(interval: Interval, digits: int, unit: str = "") -> str:
    value, low, high = (f"{each:.{digits}f}" for each in (interval.value, interval.low, interval.high))
    return f"{value}{unit} ({low} to {high})"
