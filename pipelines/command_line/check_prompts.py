"""Check the prompts of a recipe: ``python -m pipelines.command_line.check_prompts``.

It reads all prompts of ``--prompts``, and renders conversations with the chat template in ``--target``.
``build`` runs it before engines are compiled. Exit codes: 0 they can be used; 1 they cannot; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.command_line.chat_prompts import render_chats
from pipelines.command_line.prompt_files import read_prompts
from pipelines.program import EXIT_PASS, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.command_line.check_prompts", description="Check the prompts of a recipe."
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
