"""Find the thread counts and the thread placement with which a pair's rounds are fastest.

``draftproof tune`` builds missing engines first. As in the loop, a round consists of several steps of the
draft and one of the target. The command prints a table and the settings for the recipe, which it does not
change. Exit codes: 0 success; 1 an engine cannot be used, or the memory does not hold them; 2 wrong usage.

Settings are timed in turn, so that a change of the machine's speed reaches all of them alike. Each engine is
therefore loaded once for each thread count and placement, and all of them must fit into memory.
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

from pipelines.available_resources import available_bytes
from pipelines.building import build_recipe
from pipelines.command_line.options import whole_numbers
from pipelines.engine_memory import PROCESS_BYTES, read_sizes
from pipelines.errors import EngineLoadError
from pipelines.executor.engine import Engine, EngineConfig
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program

_DRAFT_STEPS = 4
_CONTEXT = 64
_ROUNDS = 30
_BLOCK_TOKENS = 32
_BLOCKS_EACH = -(-(_CONTEXT + _DRAFT_STEPS + 1) // _BLOCK_TOKENS)  # of a request
_COPIES = 2  # of the weights in memory: as in the file, and as OpenVINO's kernels read them (docs/decisions)

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
    counts = options.threads or _thread_counts(os.cpu_count() or 1)
    rounds_s = measure(Path(engines["draft"]), Path(engines["target"]), options.requests, counts)
    best = min(rounds_s, key=lambda setting: statistics.median(rounds_s[setting]))
    for setting, times in sorted(rounds_s.items(), key=lambda item: statistics.median(item[1])):
        quartiles = [1e3 * value for value in statistics.quantiles(times, n=4)]
        print(f"{setting}: {quartiles[1]:.2f} ms per round ({quartiles[0]:.2f} to {quartiles[2]:.2f})")
    print(
        f"fastest: target.num_threads: {best.target_threads}, draft.num_threads: {best.draft_threads}, "
        f"thread_placement: {best.placement}"
    )
    return EXIT_PASS


def measure(
    draft_dir: Path, target_dir: Path, num_requests: int, counts: Sequence[int]
) -> dict[Setting, list[float]]:
    """Time rounds with every setting, alternating between the settings.

    Args:
        draft_dir: Engine directory of the draft.
        target_dir: Engine directory of the target.
        num_requests: Concurrent requests, each with ``_DRAFT_STEPS`` draft tokens.
        counts: Numbers of threads.

    Returns:
        Seconds of each round by setting.

    Raises:
        EngineLoadError: An engine cannot be loaded, or the memory does not hold all of them.
    """
    num_blocks = 1 + num_requests * _BLOCKS_EACH  # one is reserved
    _check_memory((draft_dir, target_dir), len(counts) * len(PLACEMENTS), num_blocks)
    draft_inputs = _rows(num_requests, 1)
    target_inputs = _rows(num_requests, _DRAFT_STEPS + 1)
    settings = [Setting(*each) for each in itertools.product(counts, counts, PLACEMENTS)]
    drafts, targets = (
        {
            (count, placement): _with_threads(EngineFiles(directory), count, placement, num_blocks)
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


def _check_memory(engines: Sequence[Path], num_each: int, num_blocks: int) -> None:
    """Refuse to load more engines than the memory holds.

    Args:
        engines: Engine directories of the pair.
        num_each: How often each of them will be loaded.
        num_blocks: Blocks of each KV cache.
    """
    needed = PROCESS_BYTES
    for weights, block in map(read_sizes, engines):
        needed += num_each * (_COPIES * weights + num_blocks * block)
    free = available_bytes()
    if needed > free:
        raise EngineLoadError(
            "the memory does not hold the engines of all settings",
            values=f"{num_each} of the target and {num_each} of the draft, {needed / 1e9:.1f} GB",
            limit=f"{free / 1e9:.1f} GB free",
            remedy="compare fewer thread counts (--threads 4,8; with make, ARGS='--threads 4,8'), stop other "
            "programs, or use a machine with more memory",
        )


def _thread_counts(num_processors: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of processors."""
    return sorted({*(2**power for power in range(num_processors.bit_length())), num_processors})


def _rows(num_requests: int, rows_each: int) -> StepInputs:
    chunks = [
        Chunk(
            np.zeros(rows_each, np.int32),
            _CONTEXT,
            range(1 + number * _BLOCKS_EACH, 1 + (number + 1) * _BLOCKS_EACH),
            as_rows=True,
            num_logits=rows_each,
        )
        for number in range(num_requests)
    ]
    return pack(chunks, _BLOCK_TOKENS)


def _with_threads(files: EngineFiles, num_threads: int, placement: str, num_blocks: int) -> Engine:
    """Load an engine with other settings for its threads."""
    config = EngineConfig.read(files)
    properties = {**config.compile_properties, _PINNING: PLACEMENTS[placement]}
    changed = replace(config, num_threads=num_threads, compile_properties=properties)
    return Engine(files, num_blocks, changed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof tune",
        description="Find the thread counts and the placement with which rounds are fastest.",
    )
    parser.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    parser.add_argument(
        "--requests", type=int, default=1, choices=range(1, 33), metavar="N", help="concurrent requests (1)"
    )
    parser.add_argument(
        "--threads",
        type=whole_numbers(1),
        metavar="N,N",
        help="thread counts to compare (default: 1, 2, 4, ... and the number of processors)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
