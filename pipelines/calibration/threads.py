"""Find the thread counts and the placement of threads with which a pair's rounds take least time here.

``python -m build.engines --recipe demo | tail -n 1 | python -m pipelines.calibration.threads``

Standard input says where the engines are, as ``build.engines`` ends: ``{"draft": ..., "target": ...}``.
A round is what the loop makes the engines do: some steps of the draft, then one of the target. Prints a
table and the lines for the recipe; changes nothing. Exit codes: 0 measured; 1 an engine cannot be used;
2 wrong usage. Each engine is loaded once for each of its settings, so memory must hold that many.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.errors import DraftproofError
from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, StepInputs, pack

_DRAFT_STEPS = 4
_CONTEXT = 64
_ROUNDS = 30
_NUM_BLOCKS = 256
_PINNING = "ENABLE_CPU_PINNING"
PLACEMENTS = {"pinned": "YES", "free": "NO"}


@dataclass(frozen=True)
class Setting:
    """How the threads of both engines are set."""

    target_threads: int
    draft_threads: int
    placement: str

    def __str__(self) -> str:
        return f"target {self.target_threads}, draft {self.draft_threads}, {self.placement}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        engines = json.load(sys.stdin)
        draft_dir, target_dir = Path(engines["draft"]), Path(engines["target"])
    except (ValueError, KeyError, TypeError) as error:
        parser.error(f"standard input does not say where draft and target are: {error!r}")
    try:
        rounds_s = measure(draft_dir, target_dir, options.requests)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    best = min(rounds_s, key=lambda setting: statistics.median(rounds_s[setting]))
    for setting, times in sorted(rounds_s.items(), key=lambda item: statistics.median(item[1])):
        quartiles = [1e3 * value for value in statistics.quantiles(times, n=4)]
        print(f"{setting}: {quartiles[1]:.2f} ms a round ({quartiles[0]:.2f} to {quartiles[2]:.2f})")
    print(
        f"fastest: target.num_threads: {best.target_threads}, draft.num_threads: {best.draft_threads}, "
        f"thread_placement: {best.placement}"
    )
    return 0


def measure(draft_dir: Path, target_dir: Path, num_requests: int) -> dict[Setting, list[float]]:
    """Seconds of each round under each setting, all settings in turn.

    Args:
        draft_dir: Engine.
        target_dir: Engine.
        num_requests: Requests at once, each with ``_DRAFT_STEPS`` draft tokens.

    Raises:
        EngineLoadError: An engine cannot be loaded.
    """
    counts = _thread_counts(os.cpu_count() or 1)
    draft_inputs = _rows(num_requests, 1)
    target_inputs = _rows(num_requests, _DRAFT_STEPS + 1)
    settings = [Setting(*each) for each in itertools.product(counts, counts, PLACEMENTS)]
    drafts, targets = {}, {}
    for count, placement in itertools.product(counts, PLACEMENTS):
        with _with_threads(draft_dir, count, placement) as directory:
            drafts[count, placement] = Engine(directory, _NUM_BLOCKS)
        with _with_threads(target_dir, count, placement) as directory:
            targets[count, placement] = Engine(directory, _NUM_BLOCKS)
    times: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for number in range(_ROUNDS + 1):
        for setting in settings:
            draft = drafts[setting.draft_threads, setting.placement]
            target = targets[setting.target_threads, setting.placement]
            started_s = time.perf_counter()
            for _ in range(_DRAFT_STEPS):
                draft.step(draft_inputs)
            target.step(target_inputs)
            if number:  # the first makes the kernels
                times[setting].append(time.perf_counter() - started_s)
    return times


def _thread_counts(num_processors: int) -> list[int]:
    """1, 2, 4, ... and all."""
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


@contextmanager
def _with_threads(engine_dir: Path, num_threads: int, placement: str) -> Iterator[Path]:
    """The same engine with other threads: only its description differs."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for path in engine_dir.iterdir():
            if path.name != "engine.json":
                (directory / path.name).symlink_to(path.resolve())
        document = json.loads((engine_dir / "engine.json").read_text(encoding="utf-8"))
        document["num_threads"] = num_threads
        document["compile_properties"][_PINNING] = PLACEMENTS[placement]
        (directory / "engine.json").write_text(json.dumps(document), encoding="utf-8")
        yield directory


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.calibration.threads",
        description="Find thread counts and placement with which rounds take least time.",
    )
    parser.add_argument("--requests", type=int, default=1, choices=range(1, 33), metavar="N", help="at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
