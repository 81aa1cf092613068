"""The command ``draftproof`` of the wheel: ``draftproof verify`` for OpenAI-compatible servers."""

from __future__ import annotations

import argparse
import sys

from pipelines.errors import DraftproofError
from pipelines.program import run_program


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="draftproof",
        usage="draftproof verify [options]",
        description="Compare an OpenAI-compatible server with another one, or with a recorded baseline.",
        epilog="'draftproof verify --help' lists the options.",
    )
    parser.add_argument("command", choices=("verify",))
    parser.parse_args(sys.argv[1:2])
    return run_program(_verify)


def _verify() -> int:
    try:
        from pipelines.validation.openai.command import main as verify
    except ModuleNotFoundError as error:
        raise DraftproofError(
            f"the packages that compare servers are not installed: no module {error.name}",
            "run: pip install 'draftproof[verify]'",
        ) from None
    return verify(sys.argv[2:])
