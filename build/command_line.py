"""Options, error handling and output that all commands of ``build`` share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build.recipe import RUNTIMES
from pipelines.places import ENGINES
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program


def recipe_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the option ``--recipe``."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument(
        "--recipe", default="demo", help="name of a recipe, or path of a YAML file (default: demo)"
    )
    return parser


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--runtime``: one of ``RUNTIMES``, or None."""
    parser.add_argument(
        "--runtime",
        type=lambda word: word or None,
        choices=(None, *RUNTIMES),
        metavar="RUNTIME",
        help=f"{' or '.join(RUNTIMES)} (default: the recipe's)",
    )


def add_engines(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--engines``: an absolute path."""
    parser.add_argument(
        "--engines",
        type=lambda path: Path(path).resolve(),
        default=ENGINES,
        help="folder that holds the engines (default: %(default)s)",
    )


def optional_path(word: str) -> Path | None:
    """Return the path that an option names; None for "", which ``make`` gives for an empty setting."""
    return Path(word) if word else None


def add_public_key(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--public-key``: a path, or None."""
    parser.add_argument(
        "--public-key",
        type=optional_path,
        metavar="FILE",
        help="PEM file of the Ed25519 public key that must have signed the package (default: none)",
    )


def print_line(line: str) -> None:
    """Print a line and flush it, so that progress shows immediately."""
    print(line, flush=True)


def run_command(work: Callable[[], Any], fails: Callable[[Any], bool] = lambda result: False) -> int:
    """Run a command and print its result, or its error on standard error.

    Args:
        work: Returns the result, a JSON value, which is printed as the last line; None prints nothing.
        fails: Return whether a result means that the command failed.

    Returns:
        The exit code.
    """

    def print_result() -> int:
        result = work()
        if result is not None:
            print(json.dumps(result))
        return EXIT_FAIL if fails(result) else EXIT_PASS

    return run_program(print_result)
