"""Share options and parsers of numbers among verify, bench and demo."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def whole_numbers(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of options such as ``1,4,8``, which sorts and removes duplicates."""

    def read(text: str) -> tuple[int, ...]:
        try:
            numbers = sorted({int(part) for part in text.split(",")})
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 1,4,8") from None
        if numbers[0] < minimum:
            raise argparse.ArgumentTypeError(f"{numbers[0]} is below {minimum}")
        return tuple(numbers)

    return read


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return a parser of options that are one number of at least ``minimum``."""

    def read(text: str) -> int:
        numbers = whole_numbers(minimum)(text)
        if len(numbers) > 1:
            raise argparse.ArgumentTypeError(f"{text!r} is more than one number")
        return numbers[0]

    return read


def add_prompts_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--prompts``."""
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts: *.jsonl, *.txt, or a folder of both (default: a recipe's, or general ones)",
    )


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add options for the server and the prompts."""
    parser.add_argument(
        "--url",
        default="",
        help="address of a running server, grpc://host:port (default: start one)",
    )
    parser.add_argument("--recipe", default="demo", help="recipe of the server to start (%(default)s)")
    add_prompts_option(parser)
