"""Choose the prompts of a calibration, and check those of a recipe before its engines are compiled.

``python -m pipelines.bench.calibration.prompts --prompts FILE --target DIRECTORY`` reads all prompts, and
renders conversations with the target's chat template. Exit codes: 0 they can be used; 1 they cannot; 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.command_line.chat_prompts import render_chats
from pipelines.command_line.general_prompts import general_prompts, given_prompts
from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.program import EXIT_PASS, run_program

NUM_PROMPTS = 16


def calibration_prompts(path: Path | None) -> Prompts:
    """Return the prompts for calibration, none of which verification or benchmarks use.

    Args:
        path: File or folder of prompts; None for general ones, which also replace too few prompts.

    Raises:
        InvalidRequestError: The prompts cannot be read.
    """
    found = given_prompts(path).for_calibration()
    if not found.sets:
        reason = f"{found.source} has too few prompts to keep any for calibration"
        found = general_prompts().for_calibration().with_note(reason)
    return found.draw(NUM_PROMPTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.bench.calibration.prompts", description="Check the prompts of a recipe."
    )
    parser.add_argument("--prompts", type=Path, required=True, help="file or folder of prompts")
    parser.add_argument("--target", type=Path, required=True, help="folder with the target's chat.json")
    options = parser.parse_args(arguments)

    def check() -> int:
        render_chats(read_prompts(options.prompts), options.target)
        return EXIT_PASS

    return run_program(check)


if __name__ == "__main__":
    sys.exit(main())
