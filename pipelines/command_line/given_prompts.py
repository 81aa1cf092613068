"""Read the prompts that an option names, or else the general ones."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipelines.command_line.general_prompts import general_prompts
from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompts


def add_prompts_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--prompts``."""
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts: *.jsonl, *.txt, or a folder of both (default: the recipe's, else general ones)",
    )


def given_prompts(path: Path | None) -> Prompts:
    """Return the prompts of a file or a folder; the general ones if there is none.

    Raises:
        InvalidRequestError: See ``read_prompts``.
    """
    return general_prompts() if path is None else read_prompts(path)
