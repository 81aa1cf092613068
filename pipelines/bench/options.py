"""Command-line options of the benchmark."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.command_line.options import add_server_options, whole_number, whole_numbers
from pipelines.places import DATA

RESULTS = DATA / "results"
LEAST_REPETITIONS = 3  # fewer cannot estimate the noise


@dataclass(frozen=True)
class Size:
    """Default size of a benchmark.

    Attributes:
        concurrency: Numbers of concurrent requests.
        draft_lengths: Fixed draft lengths.
        max_tokens: Most output tokens per request.
    """

    concurrency: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    max_tokens: int


FULL = Size((1, 2, 4, 8, 16), (2, 4, 6), 40)
"""About 25 minutes on two cores with the recipe ``demo-large``."""

QUICK = Size((1, 8), (4,), 32)
"""A few minutes on the same machine."""


def size_of(options: argparse.Namespace) -> Size:
    """Return the size that the options select."""
    size = QUICK if options.quick else FULL
    return replace(size, **{name: value for name in vars(size) if (value := getattr(options, name))})


def make_parser() -> argparse.ArgumentParser:
    """Build the parser; options of ``Size`` are None unless given."""
    parser = argparse.ArgumentParser(
        prog="draftproof bench",
        description="Measure generate against generate_target in one run. Where two defaults are given, the "
        "second is that of --quick.",
    )
    add_server_options(parser)
    parser.add_argument(
        "--quick", action="store_true", help="run a short benchmark with fewer prompts, loads and arms"
    )
    parser.add_argument(
        "--sets",
        type=lambda text: tuple(dict.fromkeys(text.split(","))),
        help="prompt sets: names of files of the prompts (default: all, or the largest)",
    )
    parser.add_argument(
        "--concurrency",
        type=whole_numbers(1),
        help=f"numbers of concurrent requests ({_defaults('concurrency')})",
    )
    parser.add_argument(
        "--draft-lengths", type=whole_numbers(1), help=f"fixed draft lengths ({_defaults('draft_lengths')})"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="temperature of all requests (%(default)s)"
    )
    parser.add_argument(
        "--max-tokens", type=whole_number(2), help=f"most tokens per request ({_defaults('max_tokens')})"
    )
    parser.add_argument(
        "--repetitions",
        type=whole_number(LEAST_REPETITIONS),
        default=LEAST_REPETITIONS,
        help="repetitions of each arm (%(default)s)",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as the last line, JSON")
    return parser


def _defaults(name: str) -> str:
    values = (getattr(size, name) for size in (FULL, QUICK))
    lists = (value if isinstance(value, tuple) else (value,) for value in values)
    return " or ".join(",".join(map(str, each)) for each in lists)
