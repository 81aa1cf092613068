"""Write a recipe's pair as a package: ``python -m build.package --recipe demo``.

A package is a directory with the engines, their measurement, the recipe, and a list of digests that may be
signed (``build/packaging/``). ``draftproof serve --package DIRECTORY`` serves it on any machine that has the
code, and ``draftproof canary start --candidate DIRECTORY`` rolls it out.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from build.built_pair import build_pair
from build.command_line import add_runtime, optional_path, print_line, recipe_parser, run_command
from build.packaging.write import write_package
from build.recipe import REPOSITORY_ROOT, load_recipe

PACKAGES = REPOSITORY_ROOT / "dist" / "packages"


def _package(options: argparse.Namespace) -> dict[str, Any]:
    pair = build_pair(load_recipe(options.recipe, options.runtime), print_line)
    directory = options.output or PACKAGES / pair.recipe.name
    contents = write_package(pair, directory, options.sign)
    if options.sign is None:
        print_line("not signed: whoever can write to the package can change it; --sign signs it")
    return {
        "package": str(directory.resolve()),
        "recipe": contents.recipe,
        "draft": contents.draft.digest,
        "target": contents.target.digest,
        "is_signed": options.sign is not None,
    }


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser("draftproof package", "Write a recipe's pair as a package, engines first.")
    add_runtime(parser)
    parser.add_argument(
        "--output",
        type=optional_path,
        metavar="DIRECTORY",
        help="where to write the package (default: dist/packages/<recipe>)",
    )
    parser.add_argument(
        "--sign",
        type=optional_path,
        metavar="FILE",
        help="sign it with this Ed25519 private key, a PEM file (default: do not sign)",
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _package(options))


if __name__ == "__main__":
    sys.exit(main())
