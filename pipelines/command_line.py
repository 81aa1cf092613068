"""What the command lines of verify, bench and demo share: exit codes, options, progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pipelines.prompts import HELD_OUT

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_INCONCLUSIVE = 3
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT


def whole_numbers(minimum: int) -> Callable[[str], tuple[int, ...]]:
    """Reader of an option such as ``1,4,8``: different numbers, none below ``minimum``, in order."""

    def read(text: str) -> tuple[int, ...]:
        try:
            numbers = sorted({int(part) for part in text.split(",")})
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers like 1,4,8") from None
        if numbers[0] < minimum:
            raise argparse.ArgumentTypeError(f"{numbers[0]} is below {minimum}")
        return tuple(numbers)

    return read


def whole_number(minimum: int) -> Callable[[str], int]:
    """Reader of an option that is one number, not below ``minimum``."""

    def read(text: str) -> int:
        numbers = whole_numbers(minimum)(text)
        if len(numbers) > 1:
            raise argparse.ArgumentTypeError(f"{text!r} is more than one number")
        return numbers[0]

    return read


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Options that say which server is asked, and with which prompts."""
    parser.add_argument(
        "--url", default="", help="running server, grpc://host:port or http://host:port (default: start one)"
    )
    parser.add_argument("--recipe", default="demo", help="recipe whose server is started (%(default)s)")
    parser.add_argument(
        "--prompt-file",
        type=Path,
        default=HELD_OUT,
        help="JSON lines with id and text (default: prompts of the demonstration pair)",
    )


class Progress:
    """A line on standard error that is rewritten on a terminal, and left out elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._is_terminal:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away, so that other output can follow."""
        self.show("")
