"""The bench for people, and the same for machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipelines.bench.batcher_overhead import BatcherOverhead
from pipelines.bench.decode_step import DecodeStep
from pipelines.bench.figures import ArmFigures, Spread, best_draft_lengths

_HEAD = (
    f"{'at once':>7}  {'arm':<12} {'output tokens/s':>22} {'to target alone':>20} {'TTFT ms':>16} "
    f"{'ITL ms':>18} {'end-to-end s':>18} {'accepted':>8} {'length':>6}"
)


def table(figures: Sequence[ArmFigures]) -> str:
    """One line per arm and load, with the spread of each figure in brackets."""
    lines = [_HEAD, "-" * len(_HEAD)]
    for entry in figures:
        lines.append(
            f"{entry.num_at_once:>7}  {entry.arm!s:<12} {_cell(entry.output_tokens_per_s, 1, 1):>22} "
            f"{_cell(entry.ratio_to_target, 1, 2):>20} {_cell(entry.ttft_s, 1e3, 0):>16} "
            f"{_cell(entry.itl_s, 1e3, 1):>18} {_cell(entry.e2e_latency_s, 1, 2):>18} "
            f"{_number(entry.acceptance_rate, 3):>8} {_number(entry.mean_acceptance_length, 2):>6}"
        )
    return "\n".join(lines)


def conclusion(
    figures: Sequence[ArmFigures], step: DecodeStep | None, overheads: Sequence[BatcherOverhead]
) -> str:
    """The best draft length at each load, the decode step against its floor, the batcher's own cost."""
    lines = [
        f"best at {num_at_once} at once: {best.arm}, {best.ratio_to_target.median:.2f} times the target alone"
        f" ({best.ratio_to_target.low:.2f} to {best.ratio_to_target.high:.2f})"
        for num_at_once, best in best_draft_lengths(figures).items()
    ]
    if step is not None:
        low, high = step.bandwidth_range_gb_per_s
        lines.append(
            f"decode step of the target at one request: step_ms {step.step_ms:.2f}, floor_ms "
            f"{step.floor_ms:.2f} ({step.weight_bytes / 1e6:.1f} MB of weights at "
            f"{step.bandwidth_gb_per_s:.1f} GB/s, {low:.1f} to {high:.1f}), ratio {step.ratio:.2f}"
        )
    costs = ", ".join(
        f"{entry.ms_per_step:.2f} ms (x{entry.num_at_once}, K={entry.num_draft_tokens})"
        for entry in overheads
    )
    lines.append(f"batcher and loop beside the engines, per engine step: {costs}")
    return "\n".join(lines)


def as_document(
    figures: Sequence[ArmFigures],
    step: DecodeStep | None,
    overheads: Sequence[BatcherOverhead],
    num_different: int,
) -> dict[str, Any]:
    """The bench, ready for JSON."""
    return {
        "arms": [
            {
                **dataclasses.asdict(entry),
                "arm": str(entry.arm),
                "model": entry.arm.model,
                "num_draft_tokens": entry.arm.num_draft_tokens,
            }
            for entry in figures
        ],
        "best": {
            str(num_at_once): {
                "num_draft_tokens": best.arm.num_draft_tokens,
                "ratio_to_target": dataclasses.asdict(best.ratio_to_target),
            }
            for num_at_once, best in best_draft_lengths(figures).items()
        },
        "decode_step": {**dataclasses.asdict(step), "ratio": step.ratio} if step else None,
        "batcher_overhead": [dataclasses.asdict(entry) for entry in overheads],
        "answers_that_differ": num_different,
    }


def _cell(spread: Spread | None, factor: float, digits: int) -> str:
    if spread is None:
        return "-"
    median, low, high = (f"{value * factor:.{digits}f}" for value in (spread.median, spread.low, spread.high))
    return f"{median} ({low}..{high})"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
