"""The command line of the bench."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.bench.prompt_sets import ADVERSARIAL, CODE, SET_NAMES
from pipelines.bench.slo import ITL_FACTOR, TTFT_FACTOR
from pipelines.command_line import add_server_options, whole_number, whole_numbers

RESULTS = Path(__file__).resolve().parents[2] / "results"
LEAST_REPETITIONS = 3  # with fewer the noise can hardly be estimated


@dataclass(frozen=True)
class Size:
    """What is measured unless the command line says otherwise.

    Attributes:
        sets: Names of prompt sets.
        concurrency: Requests at once.
        rates: Arrivals, as shares of the capacity of the target alone.
        draft_lengths: Fixed ones.
        max_tokens: Per request.
    """

    sets: tuple[str, ...]
    concurrency: tuple[int, ...]
    rates: tuple[float, ...]
    draft_lengths: tuple[int, ...]
    max_tokens: int


FULL = Size(SET_NAMES, (1, 2, 4, 8, 16), (0.5, 0.8, 1.1), (2, 4, 6), 40)
"""About 40 minutes on two cores with the recipe ``demo-large``."""

QUICK = Size((CODE, ADVERSARIAL), (1, 8), (0.8,), (4,), 32)
"""A few minutes there."""


def size_of(options: argparse.Namespace) -> Size:
    """The size that is asked for."""
    size = QUICK if options.quick else FULL
    return Size(
        sets=options.sets or size.sets,
        concurrency=options.concurrency or size.concurrency,
        rates=options.rates or size.rates,
        draft_lengths=options.draft_lengths or size.draft_lengths,
        max_tokens=options.max_tokens or size.max_tokens,
    )


def make_parser() -> argparse.ArgumentParser:
    """Every option; those of ``Size`` are None unless given."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.bench",
        description="Time generate against generate_target in one run. Of the lists below the shorter "
        "default is that of --quick.",
    )
    add_server_options(parser)
    parser.add_argument("--quick", action="store_true", help="a few minutes: fewer prompts, loads and arms")
    parser.add_argument("--sets", type=_set_names, help=f"prompt sets ({_defaults('sets')})")
    parser.add_argument(
        "--concurrency",
        type=whole_numbers(1),
        help=f"closed loops: requests at once ({_defaults('concurrency')})",
    )
    parser.add_argument(
        "--rates",
        type=_rates,
        help="open loops: arrivals at these shares of what the target alone answers at the greatest "
        f"concurrency ({_defaults('rates')})",
    )
    parser.add_argument(
        "--draft-lengths", type=whole_numbers(1), help=f"fixed ones ({_defaults('draft_lengths')})"
    )
    parser.add_argument(
        "--temperature",
        type=_decimal(0.0),
        default=0.0,
        help="of all prompt sets but adversarial (%(default)s)",
    )
    parser.add_argument("--max-tokens", type=whole_number(2), help=f"per request ({_defaults('max_tokens')})")
    parser.add_argument(
        "--repetitions",
        type=whole_number(LEAST_REPETITIONS),
        default=LEAST_REPETITIONS,
        help="of each arm (%(default)s)",
    )
    parser.add_argument(
        "--slo-ttft-ms",
        type=_decimal(0.0),
        help=f"goodput: latest first token (default: {TTFT_FACTOR:g} times that of an idle target alone)",
    )
    parser.add_argument(
        "--slo-itl-ms",
        type=_decimal(0.0),
        help=f"goodput: longest time per further token (default: {ITL_FACTOR:g} times that)",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for JSON and page (results/)")
    return parser


def _defaults(name: str) -> str:
    texts = []
    for size in (FULL, QUICK):
        value = getattr(size, name)
        texts.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return " or ".join(texts)


def _set_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SET_NAMES]
    if unknown or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of different ones of {', '.join(SET_NAMES)}")
    return names


def _rates(text: str) -> tuple[float, ...]:
    rates = sorted({_decimal(0.0)(part) for part in text.split(",")})
    if rates[0] == 0:
        raise argparse.ArgumentTypeError("at a rate of 0 nothing arrives")
    return tuple(rates)


def _decimal(minimum: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number >= minimum):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of at least {minimum:g}")
        return number

    return read
