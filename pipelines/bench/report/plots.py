"""Plots of the benchmark page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pipelines.bench.arms import ADAPTIVE, TARGET_ALONE, Arm
from pipelines.bench.loads import ClosedLoop, OpenLoop
from pipelines.bench.plan import Plan
from pipelines.bench.report.figures import ArmFigures, CellFigures
from pipelines.bench.report.results import Results
from pipelines.bench.report.verdicts import NEVER_BELOW
from pipelines.bench.reporting.chart import Chart, Labels, Point, Series, bar_chart, line_chart

_RULES = (NEVER_BELOW, 1.0)
_CONCURRENT = "concurrent requests"
_SHARE = "arrivals, share of the capacity of the target alone"


def charts_of(results: Results, prompt_set: str) -> list[Chart]:
    """Plot one prompt set: closed loops, acceptance of drafts, open loops."""
    cells = [figures for figures in results.cells if figures.cell.prompt_set.name == prompt_set]
    closed = [figures for figures in cells if isinstance(figures.cell.load, ClosedLoop)]
    charts = list(_of_closed_loops(results.plan, closed))
    opened = [figures for figures in cells if isinstance(figures.cell.load, OpenLoop)]
    if opened:
        charts += _of_open_loops(results.plan, opened)
    return charts


def _of_closed_loops(plan: Plan, cells: Sequence[CellFigures]) -> Iterator[Chart]:
    concurrency = plan.concurrency
    yield line_chart(
        Labels("Output tokens per second", _CONCURRENT, "tokens/s, with the range"),
        [_curve(plan, arm, concurrency, cells, _tokens_per_s) for arm in plan.arms],
        concurrency,
        is_log_x=True,
    )
    yield line_chart(
        Labels("Ratio to the target alone", _CONCURRENT, "ratio, 95 % interval"),
        [_curve(plan, arm, concurrency, cells, _ratio) for arm in plan.arms if arm != TARGET_ALONE],
        concurrency,
        rules=_RULES,
        is_log_x=True,
    )
    for figures in (cells[0], cells[-1]) if len(cells) > 1 else cells:
        yield _distribution(plan, figures)
    accepted = [
        (str(arm), plan.arms.index(arm), _shares(cells[0].of(arm).acceptance.rounds_by_accepted))
        for arm in plan.arms
        if arm != TARGET_ALONE
    ]
    if any(shares for _, _, shares in accepted):
        title = f"Rounds by accepted draft tokens, {cells[0].cell.load}"
        yield bar_chart(Labels(title, "accepted draft tokens", "share of rounds"), accepted)
    lengths = [_shares(figures.of(ADAPTIVE).acceptance.rounds_by_draft_length) for figures in cells]
    if any(lengths):
        yield bar_chart(
            Labels("Rounds by draft length, adaptive", "draft tokens", "share of rounds"),
            [
                (str(figures.cell.load), index, shares)
                for index, (figures, shares) in enumerate(zip(cells, lengths, strict=True))
            ],
        )


def _of_open_loops(plan: Plan, cells: Sequence[CellFigures]) -> Iterator[Chart]:
    rates = plan.shares_of_capacity
    yield line_chart(
        Labels("Goodput", _SHARE, "requests/s within the SLO"),
        [_curve(plan, arm, rates, cells, _goodput) for arm in plan.arms],
        rates,
    )
    yield line_chart(
        Labels("Mean latency of the target alone over the arm's", _SHARE, "ratio, 95 % interval"),
        [_curve(plan, arm, rates, cells, _ratio) for arm in plan.arms if arm != TARGET_ALONE],
        rates,
        rules=_RULES,
    )
    yield _distribution(plan, cells[-1])


def _curve(
    plan: Plan,
    arm: Arm,
    x_values: Sequence[float],
    cells: Sequence[CellFigures],
    value: Callable[[ArmFigures], tuple[float, float, float]],
) -> Series:
    points = tuple(Point(x, *value(figures.of(arm))) for x, figures in zip(x_values, cells, strict=True))
    return Series(str(arm), plan.arms.index(arm), points)


def _distribution(plan: Plan, figures: CellFigures) -> Chart:
    series = []
    for entry in figures.arms:
        latencies = sorted(generation.e2e_latency_s for generation in entry.generations)
        shares = ((index + 1) / len(latencies) for index in range(len(latencies)))
        points = tuple(Point(x, y, y, y) for x, y in zip(latencies, shares, strict=True))
        series.append(Series(str(entry.arm), plan.arms.index(entry.arm), points))
    slowest = max(point.x for each in series for point in each.points)
    return line_chart(
        Labels(f"End-to-end latency, {figures.cell.load}", "seconds", "share of requests answered by then"),
        series,
        [float(f"{slowest * part:.2g}") for part in (0, 0.25, 0.5, 0.75)] + [slowest],
        has_marks=False,
    )


def _tokens_per_s(entry: ArmFigures) -> tuple[float, float, float]:
    value = entry.output_tokens_per_s
    return value.median, value.low, value.high


def _ratio(entry: ArmFigures) -> tuple[float, float, float]:
    value = entry.ratio_to_target
    return value.value, value.low, value.high


def _goodput(entry: ArmFigures) -> tuple[float, float, float]:
    value = entry.goodput_per_s
    return value.median, value.low, value.high


def _shares(counts: Sequence[int]) -> tuple[float, ...]:
    total = sum(counts)
    return tuple(count / total for count in counts) if total else ()
