"""Write what was measured beside another engine as tables and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.harness import interval_cell, markdown
from pipelines.bench.figures import CellFigures
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm

OURS, LLAMA_CPP = "draftproof", "llama-cpp"


def engine_of(arm: Arm) -> str:
    """Return the engine of an arm."""
    return LLAMA_CPP if arm.model == LLAMA_CPP else OURS


def alone_of(arm: Arm) -> Arm:
    """Return the arm of the same engine's target alone."""
    return Arm(LLAMA_CPP, 0) if arm.model == LLAMA_CPP else TARGET_ALONE


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
            drafting = [
                (num_different(figures, entry.arm), len(entry.generations))
                for figures in of_load.values()
                for entry in figures.arms
                if engine_of(entry.arm) == engine and entry.arm != alone_of(entry.arm)
            ]
            if drafting:
                different, answers = map(sum, zip(*drafting, strict=True))
                speeds = [_cell(of_load[name], engine) if name in of_load else "-" for name in sets]
                rows.append([load, title, *speeds, f"{different} of {answers}"])
    return markdown(["Concurrent", "Engine", *sets, "Answers unlike its target"], rows)


def _cell(figures: CellFigures, engine: str) -> str:
    """Return an engine's speeds, alone and at its best draft length, and ours beside the faster one."""
    arms = [entry.arm for entry in figures.arms if engine_of(entry.arm) == engine]
    drafting = [arm for arm in arms if arm != alone_of(arm)]
    if not drafting:
        return "-"
    best = max(drafting, key=lambda arm: figures.of(arm).output_tokens_per_s.median)
    alone = [f"{figures.of(arm).output_tokens_per_s.median:.0f}" for arm in arms if arm == alone_of(arm)]
    speeds = f"{alone[0] if alone else '-'} -> {figures.of(best).output_tokens_per_s.median:.0f}"
    if engine == OURS:
        return speeds
    ours = figures.blocks.ratio(ADAPTIVE, figures.blocks.fastest(arms))
    return f"{speeds} ({best}): **{interval_cell(ours, 2)}**"


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
