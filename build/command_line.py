"""What the commands of this folder share: options, errors in four parts, the result as the last line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build.recipe import REPOSITORY_ROOT, RUNTIMES
from pipelines.errors import DraftproofError

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT


def recipe_parser(module: str, description: str) -> argparse.ArgumentParser:
    """A parser that knows ``--recipe``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    return parser


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """``--runtime``: one of ``RUNTIMES``, or None."""
    parser.add_argument(
        "--runtime",
        type=lambda word: word or None,
        choices=(None, *RUNTIMES),
        metavar="RUNTIME",
        help=f"{' or '.join(RUNTIMES)}, in place of the recipe's",
    )


def add_engines(parser: argparse.ArgumentParser) -> None:
    """``--engines``: an absolute path."""
    parser.add_argument(
        "--engines",
        type=lambda path: Path(path).resolve(),
        default=REPOSITORY_ROOT / "engines",
        help="folder of the engines",
    )


def print_line(line: str) -> None:
    """A line of progress, at once."""
    print(line, flush=True)


def run_command(work: Callable[[], Any], fails: Callable[[Any], bool] = lambda result: False) -> int:
    """Do what a command is for.

    Args:
        work: Gives the result, a JSON value, which is printed as the last line; None: there is none.
        fails: Whether a result means that the command failed.

    Returns:
        The exit code.
    """
    try:
        result = work()
        if result is not None:
            print(json.dumps(result))
    except DraftproofError as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(
            DraftproofError(
                "a file cannot be read or written",
                values=str(error),
                limit="room on the disk, and files that this user may read and write",
                remedy="make room or give access, and run the command again; nothing half-made was left",
            )
        )
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return EXIT_ERROR if fails(result) else 0


def _refuse(error: DraftproofError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return EXIT_ERROR
