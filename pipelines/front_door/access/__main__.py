"""Adds and removes API keys: ``draftproof api-key add|remove NAME --file FILE``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipelines.front_door.access.key_file import add_key, remove_key
from pipelines.program import EXIT_PASS, run_program


def main(arguments: list[str] | None = None) -> int:
    """Change the file of keys; a new key is printed, and kept nowhere."""
    options = _parse(arguments)

    def work() -> int:
        if options.action == "remove":
            remove_key(options.file, options.name)
            removed = f"removed the key of {options.name} from {options.file}"
            print(f"{removed}; servers with this file refuse it from now on", file=sys.stderr)
        else:
            limits = options.max_requests, options.max_tokens
            print(add_key(options.file, options.name, *limits, may_choose_arm=options.may_choose_arm))
            print(f"added to {options.file}; this is the only time that it is shown", file=sys.stderr)
        return EXIT_PASS

    return run_program(work)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="draftproof api-key", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="add|remove")
    for action, text in (("add", "make a key and print it"), ("remove", "withdraw a key")):
        sub = actions.add_parser(action, help=text, description=text)
        sub.add_argument("name", help="who uses the key")
        sub.add_argument("--file", type=Path, required=True, help="file of keys")
        if action == "add":
            sub.add_argument("--max-requests", type=_positive, help="most requests at a time (default: any)")
            sub.add_argument(
                "--max-tokens",
                type=_positive,
                help="most tokens at a time, of prompts and longest answers (default: any)",
            )
            sub.add_argument(
                "--may-choose-arm", action="store_true", help="let its requests name the arm that answers"
            )
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
