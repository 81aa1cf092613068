"""Summarize pairs of measurements: medians with bootstrap intervals, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import interval_cell, markdown, median_interval
from benchmarks.versions.pairs import GRPC, OPENAI, Pair, Setting
from pipelines.bench.blocks import Interval
from pipelines.bench.measuring import Measurement
from pipelines.errors import VerificationError

# Even the range of fewer values contains their true median less often than the confidence says.
_LEAST_PAIRS = 6


@dataclass(frozen=True)
class SettingFigures:
    """Figures of one protocol at one load.

    Attributes:
        protocol: ``gRPC`` or ``OpenAI``.
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
class Change:
    """A time before, its median over the pairs, and the median of the differences, after minus before."""

    num_pairs: int
    before: float
    difference: Interval

    @classmethod
    def of(cls, times: Sequence[tuple[float, float]]) -> Change:
        """Summarize pairs of times, before and after."""
        return cls(
            len(times),
            statistics.median(before for before, _ in times),
            median_interval([after - before for before, after in times]),
        )

    def __str__(self) -> str:
        return f"{self.before:.2f} before, after - before {interval_cell(self.difference, 2)}"


def figures_of(pairs: Mapping[Setting, Sequence[Pair]]) -> list[SettingFigures]:
    """Summarize the pairs of every setting; raises VerificationError if a batch has no output."""
    return [_setting_figures(setting, measured) for setting, measured in pairs.items()]


def front_doors_share(pairs: Mapping[Setting, Sequence[Pair]]) -> Change:
    """Return what OpenAI's API adds to the first token of one request, in ms, in both versions."""
    single = {setting.protocol: each for setting, each in pairs.items() if setting.load.num_at_once == 1}
    return Change.of(
        [
            (_ttft_ms(openai.before) - _ttft_ms(grpc.before), _ttft_ms(openai.after) - _ttft_ms(grpc.after))
            for grpc, openai in zip(single[GRPC], single[OPENAI], strict=True)
        ]
    )


def table(settings: Sequence[SettingFigures], share_ms: Change, starts_s: Change) -> str:
    """Return a table with one line per setting, then the front door's share and the start-up."""
    rows = [
        [
            each.protocol,
            each.num_at_once,
            f"{each.tokens_per_s_before:.1f}",
            interval_cell(each.tokens_per_s_ratio, 3),
            f"{each.ttft_ms_before:.2f}",
            interval_cell(each.ttft_ms_difference, 2),
        ]
        for each in settings
    ]
    heads = ["Protocol", "Concurrent requests", "Tokens/s before", "after / before", "TTFT before, ms"]
    lines = [
        markdown([*heads, "after - before, ms"], rows),
        "",
        f"The front door adds to the first token, ms: {share_ms}. Start-up, s: {starts_s}. Medians of "
        f"{starts_s.num_pairs} pairs with 95 % intervals.",
    ]
    if starts_s.num_pairs < _LEAST_PAIRS:
        lines.append(f"The intervals are too narrow: {_LEAST_PAIRS} pairs at least, better 30.")
    return "\n".join(lines)


def _setting_figures(setting: Setting, pairs: Sequence[Pair]) -> SettingFigures:
    ttft = Change.of([(_ttft_ms(pair.before), _ttft_ms(pair.after)) for pair in pairs])
    return SettingFigures(
        protocol=setting.protocol,
        num_at_once=setting.load.num_at_once,
        num_pairs=len(pairs),
        tokens_per_s_before=statistics.median(pair.before.output_tokens_per_s for pair in pairs),
        tokens_per_s_ratio=median_interval(
            [pair.after.output_tokens_per_s / pair.before.output_tokens_per_s for pair in pairs]
        ),
        ttft_ms_before=ttft.before,
        ttft_ms_difference=ttft.difference,
    )


def _ttft_ms(measurement: Measurement) -> float:
    times_s = [answer.ttft_s for answer in measurement.generations if answer.ttft_s is not None]
    if not times_s:
        raise VerificationError(
            f"a batch cannot be compared: {measurement.cell}: no output",
            "use prompts that the target answers with at least one token",
        )
    return 1e3 * statistics.median(times_s)
