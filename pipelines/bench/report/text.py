"""Report the results as text for a terminal."""

from __future__ import annotations

from collections import Counter

from pipelines.bench.report.blocks import METHOD, Interval
from pipelines.bench.report.figures import CellFigures, Percentiles, Spread
from pipelines.bench.report.results import Results
from pipelines.bench.report.verdicts import NEVER_BELOW

_HEAD = (
    f"{'arm':<12} {'output tokens/s':>22} {'to target alone':>20} {'TTFT ms':>13} {'ITL ms':>13} "
    f"{'end-to-end s':>13} {'good/s':>7} {'accepted':>8} {'length':>6}"
)


def as_text(results: Results) -> str:
    """Render a table for each cell, followed by the conclusion."""
    lines = [table(figures) for figures in results.cells]
    lines += [
        "tokens/s: median (least..greatest) of the repetitions; times: p50/p99 of the requests",
        f"to target alone: {METHOD}; closed loops by output tokens/s, open ones by mean latency",
        f"good: TTFT at most {results.slo.ttft_s * 1e3:.0f} ms and ITL at most "
        f"{results.slo.itl_s * 1e3:.1f} ms",
        "prompts are cached for every arm, so TTFT does not include computing the prompt",
        conclusion(results),
    ]
    return "\n".join(lines)


def table(figures: CellFigures) -> str:
    """Render one line per arm."""
    lines = [f"\n{figures.cell}", _HEAD, "-" * len(_HEAD)]
    for entry in figures.arms:
        acceptance = entry.acceptance
        lines.append(
            f"{entry.arm!s:<12} {_spread(entry.output_tokens_per_s):>22} "
            f"{interval(entry.ratio_to_target):>20} {_percentiles(entry.ttft_s, 1e3, 0):>13} "
            f"{_percentiles(entry.itl_s, 1e3, 1):>13} {_percentiles(entry.e2e_latency_s, 1, 2):>13} "
            f"{entry.goodput_per_s.median:>7.2f} {_number(acceptance.acceptance_rate, 3):>8} "
            f"{_number(acceptance.mean_acceptance_length, 2):>6}"
        )
    return "\n".join(lines)


def conclusion(results: Results) -> str:
    """Summarize verdicts, crossovers, domain shift, decode step and overhead of the batcher."""
    words = Counter(verdict.word for verdict in results.verdicts)
    lines = [
        f"adaptive at least {NEVER_BELOW} times the target alone and the best fixed length: "
        f"{words['pass']} pass, {words['inconclusive']} inconclusive, {words['fail']} fail"
    ]
    lines += [
        f"  {verdict.word}: {verdict.figures.cell}: {interval(verdict.ratio)} times {verdict.other}"
        for verdict in results.verdicts
        if verdict.word != "pass"
    ]
    lines += [
        f"{name}, all loads: adaptive {interval(ratio)} times the target alone"
        for name, ratio in results.over_all_loads.items()
    ]
    lines += [f"{each.prompt_set}, {each.arm}: {each}" for each in results.crossovers]
    for phase in results.phases:
        followed = ", ".join("never" if each is None else str(each) for each in phase.rounds_to_follow)
        lines.append(
            f"domain shift, {phase.prompt_set}: adaptive {interval(phase.ratio_to_target)} times the target "
            f"alone, draft length settled at {phase.settled_length:.1f}"
            + (f" after {followed} rounds" if followed else "")
        )
    if results.step is not None:
        step = results.step
        low, high = step.bandwidth_range_gb_per_s
        lines.append(
            f"decode step of the target at one request: step_ms {step.step_ms:.2f}, floor_ms "
            f"{step.floor_ms:.2f} ({step.weight_bytes / 1e6:.1f} MB of weights at "
            f"{step.bandwidth_gb_per_s:.1f} GB/s, {low:.1f} to {high:.1f}), ratio {step.ratio:.2f}"
        )
    costs = ", ".join(
        f"{entry.ms_per_step:.2f} ms (x{entry.num_at_once}, K={entry.num_draft_tokens})"
        for entry in results.overheads
    )
    lines.append(f"overhead of batcher and loop per engine step: {costs}")
    return "\n".join(lines)


def interval(ratio: Interval) -> str:
    """Format an interval, such as ``1.31 (1.25..1.37)``."""
    return f"{ratio.value:.2f} ({ratio.low:.2f}..{ratio.high:.2f})"


def _spread(value: Spread) -> str:
    return f"{value.median:.1f} ({value.low:.1f}..{value.high:.1f})"


def _percentiles(value: Percentiles | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value.p50 * factor:.{digits}f}/{value.p99 * factor:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
