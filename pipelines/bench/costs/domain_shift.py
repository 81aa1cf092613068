"""Measure how fast the draft length follows when text leaves its domain and returns, and what that costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.bench.arms import ADAPTIVE, TARGET_ALONE, Arm
from pipelines.bench.loads import ClosedLoop
from pipelines.bench.measuring import Measurement, run_once
from pipelines.bench.plan import Cell
from pipelines.bench.prompt_sets import PromptSet
from pipelines.bench.report.blocks import Blocks, Interval
from pipelines.client.workers import Workers

_WINDOW = 3  # rounds whose draft lengths are averaged, because single rounds vary
_LEAST_CHANGE = 1.0  # draft tokens; smaller changes are ignored


@dataclass(frozen=True)
class Phase:
    """A phase with one kind of text, answered one request at a time.

    Attributes:
        prompt_set: Name of the prompts.
        ratio_to_target: Output tokens per second of the adaptive arm over those of the target alone.
        settled_length: Mean draft length in the later half of the rounds, over all repetitions.
        rounds_to_follow: For each repetition the number of rounds until the draft length was nearer to that
            of this phase than to that of the phase before; None if it never was. Empty for the first phase,
            or if the two differ by less than one token.
    """

    prompt_set: str
    ratio_to_target: Interval
    settled_length: float
    rounds_to_follow: tuple[int | None, ...]


def measure_domain_shift(
    inside: PromptSet, outside: PromptSet, max_tokens: int, repetitions: int, workers: Workers
) -> list[Phase]:
    """Send requests in the domain, outside it, and in it again, without pause.

    The target alone and the adaptive arm alternate, with a whole sequence each.

    Raises:
        DraftproofError: A request failed.
    """
    sequence = (inside, outside, inside)
    done: dict[Arm, list[list[Measurement]]] = {TARGET_ALONE: [], ADAPTIVE: []}
    for repetition in range(repetitions):
        arms = (TARGET_ALONE, ADAPTIVE) if repetition % 2 == 0 else (ADAPTIVE, TARGET_ALONE)
        for arm in arms:
            cells = (Cell(prompt_set, ClosedLoop(1)) for prompt_set in sequence)
            done[arm].append([run_once(cell, arm, max_tokens, workers, repetition) for cell in cells])
    return list(_phases(sequence, done))


def _phases(sequence: Sequence[PromptSet], done: dict[Arm, list[list[Measurement]]]) -> Iterator[Phase]:
    before = None
    for index, prompt_set in enumerate(sequence):
        speeds = {arm: [run[index].output_tokens_per_s for run in runs] for arm, runs in done.items()}
        lengths = [draft_lengths(run[index]) for run in done[ADAPTIVE]]
        settled = statistics.fmean(settled_length(each) for each in lengths)
        followed: tuple[int | None, ...] = ()
        if before is not None and abs(settled - before) >= _LEAST_CHANGE:
            followed = tuple(rounds_to_follow(each, before, settled) for each in lengths)
        yield Phase(prompt_set.name, Blocks(speeds).ratio(ADAPTIVE, TARGET_ALONE), settled, followed)
        before = settled


def draft_lengths(measurement: Measurement) -> list[int]:
    """Return the draft lengths of all rounds except each answer's first, which drafts nothing."""
    return [length for each in measurement.generations for length in each.drafted_per_round[1:]]


def settled_length(lengths: Sequence[int]) -> float:
    """Return the mean of the second half; 0 without rounds."""
    later = lengths[len(lengths) // 2 :]
    return statistics.fmean(later) if later else 0.0


def rounds_to_follow(lengths: Sequence[int], before: float, settled: float) -> int | None:
    """Count the rounds until the mean of the next three is nearer to ``settled`` than to ``before``.

    Returns None if that never happens.
    """
    for index in range(len(lengths) - _WINDOW + 1):
        now = statistics.fmean(lengths[index : index + _WINDOW])
        if abs(now - settled) < abs(now - before):
            return index
    return None
