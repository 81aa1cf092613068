"""Compute medians and spreads of rates, and of ratios within repetitions, and write them as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import markdown
from benchmarks.peers.measuring import Measurement
from benchmarks.peers.peers import OURS, OURS_ADAPTIVE, Arm
from pipelines.bench.figures import Spread, spread


@dataclass(frozen=True)
class ArmFigures:
    """Results of an arm on a prompt set at one load.

    Attributes:
        arm: The arm.
        prompt_set: Name of the prompt set.
        num_at_once: Concurrent requests.
        output_tokens_per_s: Output tokens per second of all requests together.
        ratio_to_alone: Ratio to the same engine's target alone; None if that was not measured.
        ours_to_this: Tokens per second of our adaptive arm divided by those of this arm.
        num_answers: Answers in all repetitions.
        num_different: Answers that differ from the same engine's target alone, in the same repetition.
    """

    arm: Arm
    prompt_set: str
    num_at_once: int
    output_tokens_per_s: Spread
    ratio_to_alone: Spread | None
    ours_to_this: Spread
    num_answers: int
    num_different: int


_Key = tuple[Arm, str, int]


def figures_of(measurements: Sequence[Measurement]) -> list[ArmFigures]:
    """Compute the figures of every arm, set and load.

    For an arm that failed early, the repetitions before that are compared.
    """
    groups: dict[_Key, dict[int, Measurement]] = {}
    for entry in measurements:
        groups.setdefault((entry.arm, entry.prompt_set, entry.num_at_once), {})[entry.repetition] = entry
    return [_figures(key, groups) for key in groups]


def _figures(key: _Key, groups: Mapping[_Key, Mapping[int, Measurement]]) -> ArmFigures:
    arm, prompt_set, num_at_once = key
    entries = groups[key]
    alone = groups.get((arm.alone, prompt_set, num_at_once), {})
    ours = groups.get((OURS_ADAPTIVE, prompt_set, num_at_once), {})
    to_alone = [_rate(entry) / _rate(alone[index]) for index, entry in entries.items() if index in alone]
    return ArmFigures(
        arm=arm,
        prompt_set=prompt_set,
        num_at_once=num_at_once,
        output_tokens_per_s=spread([_rate(entry) for entry in entries.values()]),
        ratio_to_alone=spread(to_alone) if to_alone else None,
        ours_to_this=spread(
            [_rate(ours[index]) / _rate(entry) for index, entry in entries.items() if index in ours]
        ),
        num_answers=sum(len(entry.answers) for entry in entries.values()),
        num_different=sum(
            _num_different(entry.answers, alone[index].answers)
            for index, entry in entries.items()
            if index in alone
        ),
    )


def _rate(entry: Measurement) -> float:
    return max(entry.num_output_tokens, 1) / entry.wall_s


def _num_different(answers: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]]) -> int:
    return sum(mine != other for mine, other in zip(answers, wanted, strict=True))


def table(figures: Sequence[ArmFigures], titles: Mapping[str, str]) -> str:
    """Return a line for each load and engine, each at its fastest draft length.

    Args:
        figures: Those of all arms.
        titles: Name for readers of each engine, in the order of the lines.
    """
    sets = list(dict.fromkeys(entry.prompt_set for entry in figures))
    rows = []
    for load in sorted({entry.num_at_once for entry in figures}):
        for engine, title in titles.items():
            arms = [each for each in figures if (each.num_at_once, each.arm.engine) == (load, engine)]
            drafting = [each for each in arms if each.arm.num_draft_tokens != 0]
            cells = [_cell([each for each in arms if each.prompt_set == name]) for name in sets]
            different = sum(each.num_different for each in drafting)
            if any(cells):
                of_all = f"{different} of {sum(each.num_answers for each in drafting)}"
                rows.append([load, title, *(cell or "-" for cell in cells), of_all])
    return markdown(["Concurrent", "Engine", *sets, "Answers unlike its target"], rows)


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
                if (arm.engine, of_set) == (engine, name)
            }
            drafting = [median_s for arm, median_s in medians.items() if arm.num_draft_tokens != 0]
            alone = [median_s for arm, median_s in medians.items() if arm.num_draft_tokens == 0]
            cells.append(" -> ".join(f"{min(each):.2f} s" if each else "-" for each in (alone, drafting)))
        rows.append([title, *cells])
    return markdown(["First token of a new prompt", *sets], rows)


def _cell(arms: Sequence[ArmFigures]) -> str:
    """Return an engine's speeds, alone and at its best draft length, and ours beside the faster one."""
    drafting = [each for each in arms if each.arm.num_draft_tokens != 0]
    if not drafting:
        return ""
    best = max(drafting, key=lambda each: each.output_tokens_per_s.median)
    alone = next((each for each in arms if each.arm.num_draft_tokens == 0), None)
    before = "-" if alone is None else f"{alone.output_tokens_per_s.median:.0f}"
    speeds = f"{before} -> {best.output_tokens_per_s.median:.0f}"
    if best.arm.engine == OURS:
        return speeds
    ours = max(arms, key=lambda each: each.output_tokens_per_s.median).ours_to_this
    length = "" if best.arm.num_draft_tokens is None else f" (K={best.arm.num_draft_tokens})"
    return f"{speeds}{length}: **{ours.median:.2f}** ({ours.low:.2f} to {ours.high:.2f})"
