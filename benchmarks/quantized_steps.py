"""Measure step time and memory of INT8 and INT4: ``python -m benchmarks.quantized_steps``.

Builds the target of a recipe in both forms, loads them one after the other, and computes steps of both in
turn. What compares them is the median over pairs of steps. The last line of standard output is JSON. Exit
codes: 0 success; 1 error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from build.engines import build_engines
from build.recipe import Quantization, load_recipe
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program

QUANTIZATIONS: tuple[Quantization, ...] = ("int8", "int4")
CONTEXT, BLOCK_SIZE = 128, 32
ROWS = (1, 2, 5, 9)


@dataclass(frozen=True)
class StepTimes:
    """Times of steps with so many rows of one request after 128 tokens.

    Attributes:
        num_rows: Rows; a step of one has a dummy row beside it, as in a server.
        int8_ms: Median.
        int4_ms: Median.
        ratio: Median over pairs of steps, INT4 divided by INT8.
        ratio_quartiles: First and third quartile of the same.
    """

    num_rows: int
    int8_ms: float
    int4_ms: float
    ratio: float
    ratio_quartiles: tuple[float, float]


def build_targets(recipe_name: str, folder: Path) -> dict[str, Path]:
    """Build the target of a recipe in both quantizations; return engine directories."""
    recipe = load_recipe(recipe_name)
    found: dict[str, Path] = {}
    for quantization in QUANTIZATIONS:
        target = replace(recipe.target, quantization=quantization, lm_head="int8")
        found[quantization] = Path(build_engines(replace(recipe, target=target), folder)["target"])
    return found


def measure_steps(int8: Engine, int4: Engine, num_rows: int, repetitions: int) -> StepTimes:
    """Compute steps of both engines in turn."""
    inputs = _inputs(num_rows)
    for engine in (int8, int4):
        for _ in range(3):
            engine.step(inputs)
    times = np.array([[_seconds(engine, inputs) for engine in (int8, int4)] for _ in range(repetitions)])
    int8_s, int4_s = np.median(times, axis=0)
    low, ratio, high = np.quantile(times[:, 1] / times[:, 0], [0.25, 0.5, 0.75])
    return StepTimes(num_rows, int8_s * 1e3, int4_s * 1e3, float(ratio), (float(low), float(high)))


def _inputs(num_rows: int) -> StepInputs:
    num_blocks = -(-(CONTEXT + num_rows) // BLOCK_SIZE)
    token_ids = np.arange(1, num_rows + 1, dtype=np.int32)
    rows = Chunk(token_ids, CONTEXT, tuple(range(1, 1 + num_blocks)), as_rows=True, num_logits=num_rows)
    return pack([rows], BLOCK_SIZE)


def _seconds(engine: Engine, inputs: StepInputs) -> float:
    started_s = time.perf_counter()
    engine.step(inputs)
    return time.perf_counter() - started_s


def _private_bytes() -> int:
    """Return the memory of this process that no file holds."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized_steps", description=__doc__)
    parser.add_argument("--recipe", default="demo-large", help="recipe of the target (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=61, help="pairs of steps (%(default)s)")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options, given))


def _measure_and_print(options: argparse.Namespace, given: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        paths = build_targets(options.recipe, Path(folder))
        about = engine_conditions(paths)
        context = conditions("benchmarks.quantized_steps", given, recipe=options.recipe, engines=about)
        engines, memory = {}, {}
        for name, path in paths.items():
            before = _private_bytes()
            engines[name] = Engine(EngineFiles(path), 2 + CONTEXT // BLOCK_SIZE)
            memory[name] = _private_bytes() - before
        steps = [measure_steps(engines["int8"], engines["int4"], rows, options.repetitions) for rows in ROWS]
    for each in steps:
        print(
            f"{each.num_rows} rows: INT8 {each.int8_ms:.2f} ms, INT4 {each.int4_ms:.2f} ms, "
            f"ratio {each.ratio:.3f} ({each.ratio_quartiles[0]:.3f} to {each.ratio_quartiles[1]:.3f})"
        )
    document = {
        "conditions": context,
        "context": CONTEXT,
        "repetitions": options.repetitions,
        "memory_bytes": memory,
        "steps": [asdict(each) for each in steps],
    }
    print(json.dumps(document))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
