"""Measure two versions in pairs: start-ups in turn, then batches of requests at two running servers.

The order within each pair is random, so that what happens on the machine affects both versions alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.versions.version import RunningVersion, Version
from pipelines.bench.measuring import Measurement, num_different_answers, run_once
from pipelines.bench.plan import ADAPTIVE, Cell, ClosedLoop
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client.workers import Workers

BEFORE, AFTER = "before", "after"
PROTOCOLS = ("grpc", "http")
LOADS = (ClosedLoop(1), ClosedLoop(8))
MAX_TOKENS = 64
_SEED = 0  # of the orders


@dataclass(frozen=True)
class Setting:
    """Protocol and load of a pair of batches."""

    protocol: str
    load: ClosedLoop

    def __str__(self) -> str:
        return f"{self.protocol}, {self.load}"


SETTINGS = tuple(Setting(protocol, load) for protocol in PROTOCOLS for load in LOADS)


@dataclass(frozen=True)
class Pair:
    """Two measurements of the same, one after the other."""

    before: Measurement
    after: Measurement


@dataclass(frozen=True)
class Batches:
    """Results of all pairs of batches.

    Attributes:
        pairs: Setting -> its pairs in the order in which they were measured.
        num_different: Answers that differ from the first answer to the same prompt, in either version.
    """

    pairs: dict[Setting, list[Pair]]
    num_different: int


def measure_starts(
    versions: Mapping[str, Version], num_pairs: int, report: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Start and stop the servers in turn; returns the start-up times before and after, in seconds."""
    times = []
    for number, order in enumerate(_orders(num_pairs)):
        start_s = {}
        for name in order:
            with versions[name].running() as server:
                start_s[name] = server.start_s
        times.append((start_s[BEFORE], start_s[AFTER]))
        report(f"start-up {number + 1}/{num_pairs}: {start_s[BEFORE]:.2f} s, {start_s[AFTER]:.2f} s")
    return times


def measure_batches(
    servers: Mapping[str, RunningVersion],
    prompt_set: PromptSet,
    num_pairs: int,
    report: Callable[[str], None],
) -> Batches:
    """Send the same batches to both servers in turn, after a batch of each setting as a warm-up.

    Args:
        servers: The running server of each version.
        prompt_set: Enough requests for every load.
        num_pairs: Pairs of each setting.
        report: Called with a line after each pair of every setting.

    Raises:
        DraftproofError: A request failed.
    """
    num_workers = max(load.num_at_once for load in LOADS)
    pairs: dict[Setting, list[Pair]] = {setting: [] for setting in SETTINGS}
    everything: list[Measurement] = []
    with ExitStack() as stack:
        workers = {
            (name, protocol): stack.enter_context(
                Workers.connect(server.url(protocol), num_workers, streaming=True)
            )
            for name, server in servers.items()
            for protocol in PROTOCOLS
        }
        for number, order in enumerate(_orders(num_pairs + 1)):
            for setting in SETTINGS:
                cell = Cell(prompt_set, setting.load)
                measured = {
                    name: run_once(cell, ADAPTIVE, MAX_TOKENS, workers[name, setting.protocol], number)
                    for name in order
                }
                everything += measured.values()
                if number:  # the first is the warm-up
                    pairs[setting].append(Pair(measured[BEFORE], measured[AFTER]))
            report(f"batches {number}/{num_pairs}" if number else "warmed up")
    return Batches(pairs, num_different_answers(everything))


def _orders(count: int) -> Iterator[list[str]]:
    drawn = random.Random(_SEED)
    for _ in range(count):
        yield drawn.sample((BEFORE, AFTER), 2)
