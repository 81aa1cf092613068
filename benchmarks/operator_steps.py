"""Compare an operator of OpenVINO with ours by context and step: ``python -m benchmarks.operator_steps``.

Builds the target of a recipe with each, and computes the same steps with both in turn. A step's time is the
CPU time of its busiest thread, which other programs hardly change. The last line of standard output is JSON.
Exit codes: 0 success; 1 an error; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from build.engines import build_engines
from build.recipe import Recipe, load_recipe
from pipelines.bench.calibration.step_times import time_step
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles
from pipelines.program import EXIT_PASS, run_program

OPERATORS = ("attention", "linear")  # keys of a recipe
KINDS = ("openvino", "draftproof")
CONTEXTS = {"attention": (64, 2048, 8192), "linear": (64,)}
ROWS = {"attention": (1, 5, 9), "linear": (1, 2, 3, 5, 9, 17)}
PROMPT_TOKENS = 512
BLOCK_SIZE = 32


@dataclass(frozen=True)
class StepTimes:
    """Times of steps of one form.

    Attributes:
        context_len: Cached positions before the step.
        num_tokens: New tokens of one request.
        as_rows: Whether they are rows of a verification, else a chunk of a prompt.
        openvino_ms: Median.
        draftproof_ms: Median.
        ratio: Median over pairs of steps, ours divided by OpenVINO's.
        ratio_quartiles: First and third quartile of the same.
    """

    context_len: int
    num_tokens: int
    as_rows: bool
    openvino_ms: float
    draftproof_ms: float
    ratio: float
    ratio_quartiles: tuple[float, float]


def build_targets(recipe: Recipe, operator: str, folder: Path) -> dict[str, Path]:
    """Build the target of a recipe with both kinds of an operator; return engine directories."""
    found: dict[str, Path] = {}
    for kind in KINDS:
        key: dict[str, Any] = {operator: kind}
        changed = replace(recipe, target=replace(recipe.target, **key))
        found[kind] = Path(build_engines(changed, folder)["target"])
    return found


def measure_steps(
    engines: dict[str, Engine], context_len: int, num_tokens: int, repetitions: int, *, as_rows: bool
) -> StepTimes:
    """Compute steps of both engines in turn."""
    blocks = range(1, 2 + (context_len + num_tokens) // BLOCK_SIZE)
    token_ids = np.arange(1, num_tokens + 1, dtype=np.int32)
    logits = num_tokens if as_rows else 1
    inputs = pack([Chunk(token_ids, context_len, blocks, as_rows=as_rows, num_logits=logits)], BLOCK_SIZE)
    for engine in engines.values():
        engine.step(inputs)  # creates the kernels
    seconds = np.array(
        [
            [time_step(partial(engines[each].step, inputs)).busiest_s for each in KINDS]
            for _ in range(repetitions)
        ]
    )
    theirs_s, ours_s = np.median(seconds, axis=0)
    low, ratio, high = np.quantile(seconds[:, 1] / seconds[:, 0], [0.25, 0.5, 0.75])
    return StepTimes(
        *(context_len, num_tokens, as_rows, theirs_s * 1e3, ours_s * 1e3),
        ratio=float(ratio),
        ratio_quartiles=(float(low), float(high)),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operator_steps", description=__doc__)
    parser.add_argument("operator", choices=OPERATORS, help="key of a recipe")
    parser.add_argument("--recipe", default="demo-large", help="name of a recipe, or path of a YAML file")
    parser.add_argument("--quantization", choices=("int8", "int4"), help="of the target (the recipe's)")
    parser.add_argument("--contexts", type=int, nargs="+", help="context lengths")
    parser.add_argument("--repetitions", type=int, default=15, help="pairs of steps (%(default)s)")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_print(options, given))


def _measure_and_print(options: argparse.Namespace, given: list[str]) -> int:
    recipe = load_recipe(options.recipe)
    if options.quantization is not None:
        recipe = replace(recipe, target=replace(recipe.target, quantization=options.quantization))
    with tempfile.TemporaryDirectory() as folder:
        paths = build_targets(recipe, options.operator, Path(folder))
        about = engine_conditions(paths)
        context = conditions("benchmarks.operator_steps", given, recipe=options.recipe, engines=about)
        contexts = options.contexts or CONTEXTS[options.operator]
        num_blocks = 3 + (max(contexts) + PROMPT_TOKENS) // BLOCK_SIZE
        engines = {name: Engine(EngineFiles(path), num_blocks) for name, path in paths.items()}
        steps = []
        for context_len in contexts:
            for num_tokens, as_rows in (
                *((rows, True) for rows in ROWS[options.operator]),
                (PROMPT_TOKENS, False),
            ):
                measured = measure_steps(
                    engines, context_len, num_tokens, options.repetitions, as_rows=as_rows
                )
                print(json.dumps(asdict(measured)), flush=True)
                steps.append(measured)
    document = {
        "conditions": context,
        "operator": options.operator,
        "repetitions": options.repetitions,
        "steps": [asdict(each) for each in steps],
    }
    print(json.dumps(document))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
