"""Judge whether the adaptive draft length is ever slower, and report: a table, and one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.bench.blocks import METHOD, Interval
from pipelines.bench.figures import (
    ArmFigures,
    CellFigures,
    Percentiles,
    Spread,
    acceptance_rate,
    mean_acceptance_length,
)
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm, Plan
from pipelines.bench.reporting.section import Verdict, joint_verdict

NEVER_BELOW = 0.97


@dataclass(frozen=True)
class Comparison:
    """The adaptive arm beside another arm in one cell.

    Attributes:
        figures: Figures of the cell.
        other: Arm that the adaptive arm must not be slower than.
        ratio: Ratio of the speed of the adaptive arm to that of the other.
    """

    figures: CellFigures
    other: Arm
    ratio: Interval

    @property
    def verdict(self) -> Verdict:
        """``pass`` if the whole interval is at least 0.97, ``fail`` if all of it is below."""
        if self.ratio.low >= NEVER_BELOW:
            return "pass"
        return "fail" if self.ratio.high < NEVER_BELOW else "inconclusive"


def comparisons(cells: Sequence[CellFigures]) -> list[Comparison]:
    """Compare the adaptive arm with the target alone and the best fixed draft length in each cell.

    The best fixed length is chosen by the same figures, so luck favours it: the comparison is too strict
    rather than too lenient.
    """
    found = []
    for figures in cells:
        fixed = [each.arm for each in figures.arms if each.arm not in (TARGET_ALONE, ADAPTIVE)]
        for other in (TARGET_ALONE, figures.blocks.fastest(fixed)):
            found.append(Comparison(figures, other, figures.blocks.ratio(ADAPTIVE, other)))
    return found


@dataclass(frozen=True)
class Results:
    """Results of one run.

    Attributes:
        run_id: Name of its files.
        plan: Plan of the run.
        cells: Figures of the cells in the order of the plan.
        num_different: Number of answers that differ from the target's own.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
        was_stopped: Whether the run was stopped before its plan was complete.
    """

    run_id: str
    plan: Plan
    cells: tuple[CellFigures, ...]
    num_different: int
    conditions: dict[str, Any]
    was_stopped: bool = False


_HEAD = (
    f"{'prompts, load':<28} {'arm':<12} {'output tokens/s':>22} {'to target alone':>20} {'TTFT ms':>13} "
    f"{'ITL ms':>13} {'end-to-end s':>13} {'accepted':>8} {'length':>6}"
)


def as_text(results: Results) -> str:
    """Render the table, followed by the verdict."""
    lines = [_HEAD, "-" * len(_HEAD)]
    lines += [_row(figures, entry) for figures in results.cells for entry in figures.arms]
    lines += [
        "tokens/s: median (least..greatest) of the repetitions; times: p50/p99 of the requests",
        f"to target alone: {METHOD}",
        "prompts are cached for every arm, so TTFT does not include computing the prompt",
        _conclusion(results),
    ]
    return "\n".join(lines)


def _row(figures: CellFigures, entry: ArmFigures) -> str:
    generations = entry.generations
    return (
        f"{figures.cell!s:<28} {entry.arm!s:<12} {_spread(entry.output_tokens_per_s):>22} "
        f"{_interval(entry.ratio_to_target):>20} {_percentiles(entry.ttft_s, 1e3, 0):>13} "
        f"{_percentiles(entry.itl_s, 1e3, 1):>13} {_percentiles(entry.e2e_latency_s, 1, 2):>13} "
        f"{_number(acceptance_rate(generations), 3):>8} {_number(mean_acceptance_length(generations), 2):>6}"
    )


def _conclusion(results: Results) -> str:
    judged = comparisons(results.cells)
    counts = Counter(each.verdict for each in judged)
    lines = [
        f"{joint_verdict(judged).upper()}: adaptive at least {NEVER_BELOW} times the target alone and the "
        f"best fixed length: {counts['pass']} pass, {counts['inconclusive']} inconclusive, "
        f"{counts['fail']} fail"
    ]
    lines += [
        f"  {each.verdict}: {each.figures.cell}: {_interval(each.ratio)} times {each.other}"
        for each in judged
        if each.verdict != "pass"
    ]
    return "\n".join(lines)


def _interval(ratio: Interval) -> str:
    """Format an interval, such as ``1.31 (1.25..1.37)``."""
    return f"{ratio.value:.2f} ({ratio.low:.2f}..{ratio.high:.2f})"


def _spread(value: Spread) -> str:
    return f"{value.median:.1f} ({value.low:.1f}..{value.high:.1f})"


def _percentiles(value: Percentiles | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value.p50 * factor:.{digits}f}/{value.p99 * factor:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def as_document(results: Results) -> dict[str, Any]:
    """Return the results, ready for JSON."""
    plan = results.plan
    return {
        "run_id": results.run_id,
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "draft_lengths": plan.draft_lengths,
        "ratio_method": METHOD,
        "cells": [_cell(figures) for figures in results.cells],
        "verdict": joint_verdict(comparisons(results.cells)),
        "answers_that_differ": results.num_different,
        "was_stopped": results.was_stopped,
        "conditions": results.conditions,
    }


def _cell(figures: CellFigures) -> dict[str, Any]:
    return {
        "prompt_set": figures.cell.prompt_set.name,
        "concurrency": figures.cell.num_at_once,
        "arms": [_arm(entry) for entry in figures.arms],
        "adaptive_compared": [
            {
                "to": str(each.other),
                "ratio": asdict(each.ratio),
                "limit": NEVER_BELOW,
                "verdict": each.verdict,
            }
            for each in comparisons([figures])
        ],
    }


def _arm(entry: ArmFigures) -> dict[str, Any]:
    return {
        "arm": str(entry.arm),
        "model": entry.arm.model,
        "num_draft_tokens": entry.arm.num_draft_tokens,
        "output_tokens_per_s": asdict(entry.output_tokens_per_s),
        "ratio_to_target": asdict(entry.ratio_to_target),
        "ttft_s": asdict(entry.ttft_s) if entry.ttft_s else None,
        "itl_s": asdict(entry.itl_s) if entry.itl_s else None,
        "e2e_latency_s": asdict(entry.e2e_latency_s),
        "num_requests": len(entry.generations),
        "num_output_tokens": sum(generation.num_output_tokens for generation in entry.generations),
        "acceptance_rate": acceptance_rate(entry.generations),
        "mean_acceptance_length": mean_acceptance_length(entry.generations),
    }
