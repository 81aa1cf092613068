"""Prove on a running server that speculation changes no answer; a release is judged by this report.

``python -m pipelines.validation --recipe demo`` runs the full proof, with ``--quick`` a short one of a minute
or two. ``--against URL --control URL`` compares any two OpenAI-compatible servers
(``pipelines/validation/openai``).

Exit codes: 0 pass; 1 a difference, or nothing was tested; 2 wrong usage; 3 inconclusive: all compared answers
are equal, but some are missing or there are too few. The same report is the page
``.run/<recipe>/verify.html`` and, with ``--json``, the last line of standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from pipelines.command_line.options import add_server_options, whole_number
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.running_server import running_server
from pipelines.deploy.server import run_directory
from pipelines.errors import InvalidRequestError, RecipeError
from pipelines.program import EXIT_INCONCLUSIVE, run_program
from pipelines.validation.exact.run import LEAST_PROMPTS, QUICK, RELEASE, Size
from pipelines.validation.exact.sections import PASSES
from pipelines.validation.openai import command
from pipelines.validation.own import verify_own
from pipelines.validation.report import add_report_options, show
from pipelines.validation.stopping import stopped_early_by_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    if command.is_asked_for(command_line):
        return command.main(command_line)
    parser = _parser()
    options = parser.parse_args(command_line)
    if options.only == "distribution" and options.quick:
        parser.error("--quick skips the distribution of unseeded answers")
    size = _size(options)
    try:
        prompts = choose_prompts(options.prompts, options.recipe).for_judging()
        prompts.draw(size.num_prompts, least=options.num_prompts or LEAST_PROMPTS)
    except (InvalidRequestError, RecipeError) as error:
        parser.error(str(error))

    def work() -> int:
        page = options.html or run_directory(options.recipe) / "verify.html"
        with running_server(options.url, options.recipe) as url, stopped_early_by_signals():
            report, context = verify_own(url, options.recipe, size, prompts, options.only, command_line)
        return show(report, context, page, as_json=options.json, printed=PASSES)

    result = {"verdict": "inconclusive"} if options.json else None
    return run_program(work, result, EXIT_INCONCLUSIVE)


def _size(options: argparse.Namespace) -> Size:
    size = QUICK if options.quick else RELEASE
    given = {name: value for name in ("num_prompts", "max_tokens") if (value := getattr(options, name))}
    return replace(size, **given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof verify",
        description="Prove that generate gives the answers of generate_target.",
    )
    add_server_options(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run a short proof of the same design, with fewer prompts and tokens",
    )
    parser.add_argument(
        "--num-prompts",
        type=whole_number(LEAST_PROMPTS),
        help=f"number of prompts (default: up to {RELEASE.num_prompts}, with --quick {QUICK.num_prompts})",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1),
        help=f"most tokens per answer (default: {RELEASE.max_tokens}, with --quick {QUICK.max_tokens})",
    )
    parser.add_argument(
        "--only",
        choices=("equality", "distribution"),
        default="",
        help="run one of the two parts: equality token by token, or the distribution of unseeded answers",
    )
    add_report_options(parser, ".run/<recipe>/verify.html")
    parser.epilog = (
        "To compare two OpenAI-compatible servers: --against URL --control URL; add --help for its options."
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
