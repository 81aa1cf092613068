"""Report the results as one JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pipelines.bench.loads import ClosedLoop, Load
from pipelines.bench.report.blocks import METHOD
from pipelines.bench.report.figures import ArmFigures, CellFigures
from pipelines.bench.report.results import Results
from pipelines.bench.report.verdicts import NEVER_BELOW, Verdict

FORMAT = 2  # readers refuse other formats
_DIGITS = 5  # significant digits


def as_document(results: Results) -> dict[str, Any]:
    """Return the results, ready for JSON."""
    plan = results.plan
    step = results.step
    document = {
        "format": FORMAT,
        "run_id": results.run_id,
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "draft_lengths": plan.draft_lengths,
        "slo": asdict(results.slo),
        "capacity_per_s": results.capacity_per_s,
        "ratio_method": METHOD,
        "cells": [
            _cell(figures, [each for each in results.verdicts if each.figures is figures])
            for figures in results.cells
        ],
        "over_all_loads": {name: asdict(ratio) for name, ratio in results.over_all_loads.items()},
        "crossovers": [
            {**asdict(each), "arm": str(each.arm), "says": str(each)} for each in results.crossovers
        ],
        "domain_shift": [asdict(phase) for phase in results.phases],
        "decode_step": {**asdict(step), "ratio": step.ratio} if step else None,
        "batcher_overhead": [asdict(entry) for entry in results.overheads],
        "answers_that_differ": results.num_different,
        "conditions": results.conditions,
    }
    rounded: dict[str, Any] = _rounded(document)
    return rounded


def _cell(figures: CellFigures, verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "prompt_set": figures.cell.prompt_set.name,
        "load": _load(figures.cell.load),
        "arms": [_arm(entry) for entry in figures.arms],
        "adaptive_compared": [
            {"to": str(each.other), "ratio": asdict(each.ratio), "limit": NEVER_BELOW, "verdict": each.word}
            for each in verdicts
        ],
    }


def _load(load: Load) -> dict[str, Any]:
    kind = "closed" if isinstance(load, ClosedLoop) else "open"
    return {"kind": kind, **asdict(load)}


def _arm(entry: ArmFigures) -> dict[str, Any]:
    acceptance = entry.acceptance
    return {
        "arm": str(entry.arm),
        "model": entry.arm.model,
        "num_draft_tokens": entry.arm.num_draft_tokens,
        "output_tokens_per_s": asdict(entry.output_tokens_per_s),
        "ratio_to_target": asdict(entry.ratio_to_target),
        "ttft_s": asdict(entry.ttft_s) if entry.ttft_s else None,
        "itl_s": asdict(entry.itl_s) if entry.itl_s else None,
        "e2e_latency_s": asdict(entry.e2e_latency_s),
        "goodput_per_s": asdict(entry.goodput_per_s),
        "share_good": entry.share_good,
        "num_requests": len(entry.generations),
        "num_output_tokens": sum(generation.num_output_tokens for generation in entry.generations),
        "acceptance_rate": acceptance.acceptance_rate,
        "mean_acceptance_length": acceptance.mean_acceptance_length,
        "mean_draft_length": acceptance.mean_draft_length,
        "accepted_per_position": acceptance.accepted_per_position,
        "rounds_by_accepted": acceptance.rounds_by_accepted,
        "rounds_by_draft_length": acceptance.rounds_by_draft_length,
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
