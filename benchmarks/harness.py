"""Gives every benchmark its command line, prompts, intervals, and a result as Markdown and as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.atomic_file import write_whole
from pipelines.bench.blocks import CONFIDENCE, Interval
from pipelines.command_line.options import add_prompts_option
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

_RESAMPLES = 10_000
_SEED = 0


@dataclass(frozen=True)
class Result:
    """The result of a benchmark.

    Attributes:
        table: Markdown to be pasted into a page; the conditions are printed below it.
        document: Everything, ready for JSON, with ``conditions``.
        exit_code: What the program ends with.
    """

    table: str
    document: dict[str, Any]
    exit_code: int = EXIT_PASS


def parser_of(program: str, description: str, recipe: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark of a pair has.

    Args:
        program: Module that runs.
        description: What it does.
        recipe: Recipe that it measures by default.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--recipe", default=recipe, help="name of a recipe, or its file (%(default)s)")
    add_prompts_option(parser)
    return parser


def run_benchmark(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace, list[str]], Result],
    arguments: Sequence[str] | None = None,
) -> int:
    """Measure, print the table, its conditions and one line of JSON, write a file of it if one is named.

    Args:
        parser: Reads the options.
        measure: Takes the options and the command line.
        arguments: The command line; None for that of the process.

    Returns:
        The exit code.
    """
    parser.add_argument("--output", type=Path, help="file for the result, JSON")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        with stopped_by_signals():
            result = measure(options, command_line)
        print(result.table, conditions_line(result.document["conditions"]), sep="\n\n")
        print(json.dumps(result.document))
        if options.output is not None:
            write_whole(options.output, json.dumps(result.document, indent=1) + "\n")
        return result.exit_code

    return run_program(work, result={})


def say(line: str) -> None:
    """Report progress on standard error."""
    print(line, file=sys.stderr, flush=True)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def conditions_line(about: dict[str, Any]) -> str:
    """Say in one line what figures depend on.

    Args:
        about: From ``conditions``, possibly with ``recipe``, ``engines`` and ``triton_version``.
    """
    known = {"amx_int8": "AMX", "avx512_vnni": "AVX-512 VNNI", "avx512f": "AVX-512", "avx2": "AVX2"}
    widest = next((words for flag, words in known.items() if flag in about["cpu_flags"]), "no AVX2")
    versions = [f"OpenVINO {about['packages']['openvino']}", f"Python {about['python']}"]
    if "triton_version" in about:
        versions.insert(0, f"Triton {about['triton_version']}")
    parts = [f"recipe `{about['recipe']}`"] if "recipe" in about else []
    for role, engine in sorted(about.get("engines", {}).items(), reverse=True):
        if "num_parameters" in engine:
            size = f"{engine['num_parameters'] / 1e6:.1f} M"
            parts.append(f"{role} {size} parameters, {engine['quantization']}")
    parts += [
        f"{about['cpu']} ({widest}), {about['num_cores']} cores",
        f"load {about['load_average_1min']} at the start",
        ", ".join(versions),
        f"{about['date'][:10]}, commit {about['git_sha'][:10]}, `{about['command']}`",
    ]
    return f"Conditions: {'; '.join(parts)}."


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median of independent values with its 95 % percentile bootstrap interval.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13.
    """
    rng = np.random.default_rng(_SEED)
    resampled = np.median(rng.choice(np.asarray(values), (_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return Interval(statistics.median(values), low, high)


def interval_cell(interval: Interval, digits: int) -> str:
    """Return such as ``1.02 (0.98 to 1.05)``."""
    value, low, high = (f"{each:.{digits}f}" for each in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"
