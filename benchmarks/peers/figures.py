"""Write what was measured beside another engine as tables and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.harness import interval_cell, markdown
from pipelines.bench.figures import CellFigures
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm

OURS, LLAMA_CPP, IK_LLAMA_CPP = "draftproof", "llama-cpp", "ik-llama-cpp"
PEERS = (LLAMA_CPP, IK_LLAMA_CPP)


def engine_of(arm: Arm) -> str:
    """Return the engine of an arm."""
    return arm.model if arm.model in PEERS else OURS


def alone_of(arm: Arm) -> Arm:
    """Return the arm of the same engine's target alone."""
    return Arm(arm.model, 0) if arm.model in PEERS else TARGET_ALONE


def name_of(arm: Arm) -> str:
    """Return the name of an arm."""
    return f"{engine_of(arm)} {'target alone' if arm == alone_of(arm) else arm}"


def num_different(figures: CellFigures, arm: Arm) -> int:
    """Count the answers that differ from the same engine's target alone, in the same repetition."""
    if alone_of(arm) not in (each.arm for each in figures.arms):
        return 0
    pairs = zip(figures.of(arm).generations, figures.of(alone_of(arm)).generations, strict=True)
    return sum(mine.output_ids != alone.output_ids for mine, alone in pairs)


def documents(figures: CellFigures) -> list[dict[str, Any]]:
    """Return the figures of each arm, ready for JSON."""
    arms, blocks = [entry.arm for entry in figures.arms], figures.blocks
    return [
        {
            "arm": name_of(entry.arm),
            "engine": engine_of(entry.arm),
            "num_draft_tokens": 0 if entry.arm == TARGET_ALONE else entry.arm.num_draft_tokens,
            "prompt_set": figures.cell.prompt_set.name,
            "num_at_once": figures.cell.num_at_once,
            "output_tokens_per_s": asdict(entry.output_tokens_per_s),
            "ratio_to_alone": asdict(blocks.ratio(entry.arm, alone_of(entry.arm)))
            if alone_of(entry.arm) in arms
            else None,
            "ours_to_this": asdict(blocks.ratio(ADAPTIVE, entry.arm)),
            "num_answers": len(entry.generations),
            "num_different": num_different(figures, entry.arm),
        }
        for entry in figures.arms
    ]


def table(cells: Sequence[CellFigures], titles: Mapping[str, str]) -> str:
    """Return a line for each load and engine, each at its fastest draft length.

    Args:
        cells: Figures of all sets and loads.
        titles: Name for readers of each engine, in the order of the lines.
    """
    sets = list(dict.fromkeys(figures.cell.prompt_set.name for figures in cells))
    rows = []
    for load in sorted({figures.cell.num_at_once for figures in cells}):
        of_load = {each.cell.prompt_set.name: each for each in cells if each.cell.num_at_once == load}
        for engine, title in titles.items():
            of_engine = [
                (figures, entry)
                for figures in of_load.values()
                for entry in figures.arms
                if engine_of(entry.arm) == engine
            ]
            if not of_engine:
                continue
            drafting = [each for each in of_engine if each[1].arm != alone_of(each[1].arm)]
            different = sum(num_different(figures, entry.arm) for figures, entry in drafting)
            answers = sum(len(entry.generations) for _, entry in drafting)
            speeds = [_cell(of_load[name], engine) if name in of_load else "-" for name in sets]
            rows.append([load, title, *speeds, f"{different} of {answers}" if drafting else "-"])
    return markdown(["Concurrent", "Engine", *sets, "Answers unlike its target"], rows)


def _cell(figures: CellFigures, engine: str) -> str:
    """Return an engine's speeds, alone and at its best draft length, and ours beside the faster one."""
    arms = [entry.arm for entry in figures.arms if engine_of(entry.arm) == engine]
    if not arms:
        return "-"
    rates = {arm: figures.of(arm).output_tokens_per_s.median for arm in arms}
    alone = [f"{rate:.0f}" for arm, rate in rates.items() if arm == alone_of(arm)]
    best = max((arm for arm in arms if arm != alone_of(arm)), key=rates.__getitem__, default=None)
    speeds = f"{alone[0] if alone else '-'}" + (f" -> {rates[best]:.0f}" if best else "")
    if engine == OURS:
        return speeds
    ours = figures.blocks.ratio(ADAPTIVE, figures.blocks.fastest(arms))
    return f"{speeds}{f' ({best})' if best else ''}: **{interval_cell(ours, 2)}**"


def first_token_table(seconds: Mapping[tuple[Arm, str], Sequence[float]], titles: Mapping[str, str]) -> str:
    """Return a line for each engine: time to the first token, alone and with its fastest draft.

    Args:
        seconds: Arm and prompt set -> time of each prompt, which is in no cache, in seconds.
        titles: As for ``table``.
    """
    sets = list(dict.fromkeys(prompt_set for _, prompt_set in seconds))
    rows = []
    for engine, title in titles.items():
        cells = []
        for name in sets:
            medians = {
                arm: statistics.median(times)
                for (arm, of_set), times in seconds.items()
                if (engine_of(arm), of_set) == (engine, name)
            }
            alone = [median_s for arm, median_s in medians.items() if arm == alone_of(arm)]
            drafting = [median_s for arm, median_s in medians.items() if arm != alone_of(arm)]
            cells.append(" -> ".join(f"{min(each):.2f} s" if each else "-" for each in (alone, drafting)))
        rows.append([title, *cells])
    return markdown(["First token of a new prompt", *sets], rows)
