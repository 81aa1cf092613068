"""Find the thread counts and the thread placement with which a pair's rounds are fastest.

``draftproof tune`` builds missing engines first. As in the loop, a round consists of several steps of the
draft and one of the target. The command prints a table and the settings for the recipe, which it does not
change. Exit codes: 0 success; 1 an engine cannot be used; 2 wrong usage. Each engine is loaded once for each
setting, and all of them must fit into memory.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipelines.building import build_recipe
from pipelines.executor.engine import Engine, EngineConfig
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program

_DRAFT_STEPS = 4
_CONTEXT = 64
_ROUNDS = 30
_NUM_BLOCKS = 256
_PINNING = "ENABLE_CPU_PINNING"
PLACEMENTS = {"pinned": "YES", "free": "NO"}


@dataclass(frozen=True)
class Setting:
    """Number and placement of the threads of both engines."""

    target_threads: int
    draft_threads: int
    placement: str

    def __str__(self) -> str:
        return f"target {self.target_threads}, draft {self.draft_threads}, {self.placement}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    return run_program(lambda: _measure_and_print(options))


def _measure_and_print(options: argparse.Namespace) -> int:
    engines = build_recipe("build.engines", options.recipe, report=print)
    rounds_s = measure(Path(engines["draft"]), Path(engines["target"]), options.requests)
    best = min(rounds_s, key=lambda setting: statistics.median(rounds_s[setting]))
    for setting, times in sorted(rounds_s.items(), key=lambda item: statistics.median(item[1])):
        quartiles = [1e3 * value for value in statistics.quantiles(times, n=4)]
        print(f"{setting}: {quartiles[1]:.2f} ms per round ({quartiles[0]:.2f} to {quartiles[2]:.2f})")
    print(
        f"fastest: target.num_threads: {best.target_threads}, draft.num_threads: {best.draft_threads}, "
        f"thread_placement: {best.placement}"
    )
    return EXIT_PASS


def measure(draft_dir: Path, target_dir: Path, num_requests: int) -> dict[Setting, list[float]]:
    """Time rounds with every setting, alternating between the settings.

    Args:
        draft_dir: Engine directory of the draft.
        target_dir: Engine directory of the target.
        num_requests: Concurrent requests, each with ``_DRAFT_STEPS`` draft tokens.

    Raises:
        EngineLoadError: An engine cannot be loaded.
    """
    counts = _thread_counts(os.cpu_count() or 1)
    draft_inputs = _rows(num_requests, 1)
    target_inputs = _rows(num_requests, _DRAFT_STEPS + 1)
    settings = [Setting(*each) for each in itertools.product(counts, counts, PLACEMENTS)]
    drafts, targets = (
        {
            (count, placement): _with_threads(EngineFiles(directory), count, placement)
            for count, placement in itertools.product(counts, PLACEMENTS)
        }
        for directory in (draft_dir, target_dir)
    )
    times: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for number in range(_ROUNDS + 1):
        for setting in settings:
            draft = drafts[setting.draft_threads, setting.placement]
            target = targets[setting.target_threads, setting.placement]
            started_s = time.perf_counter()
            for _ in range(_DRAFT_STEPS):
                draft.step(draft_inputs)
            target.step(target_inputs)
            if number:  # the first round also creates the kernels
                times[setting].append(time.perf_counter() - started_s)
    return times


def _thread_counts(num_processors: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of processors."""
    return sorted({*(2**power for power in range(num_processors.bit_length())), num_processors})


def _rows(num_requests: int, rows_each: int) -> StepInputs:
    blocks_each = -(-(_CONTEXT + rows_each) // 32)
    chunks = [
        Chunk(
            np.zeros(rows_each, np.int32),
            _CONTEXT,
            range(1 + number * blocks_each, 1 + (number + 1) * blocks_each),
            as_rows=True,
            num_logits=rows_each,
        )
        for number in range(num_requests)
    ]
    return pack(chunks, 32)


def _with_threads(files: EngineFiles, num_threads: int, placement: str) -> Engine:
    """Load an engine with other settings for its threads."""
    config = EngineConfig.read(files)
    properties = {**config.compile_properties, _PINNING: PLACEMENTS[placement]}
    changed = replace(config, num_threads=num_threads, compile_properties=properties)
    return Engine(files, _NUM_BLOCKS, changed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof tune",
        description="Find the thread counts and the placement with which rounds are fastest.",
    )
    parser.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    parser.add_argument(
        "--requests", type=int, default=1, choices=range(1, 33), metavar="N", help="concurrent requests (1)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
