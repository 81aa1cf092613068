"""Prove on a running server that speculation changes no answer; a release is judged by this report.

``python -m pipelines.validation --recipe demo`` runs the full proof in the time of ``--minutes``, with
``--quick`` a short one. ``--against URL --control URL`` compares any two OpenAI-compatible servers
(``pipelines/validation/openai``).

Exit codes: 0 pass; 1 a difference, or nothing was tested; 2 wrong usage; 3 inconclusive: all compared answers
are equal, but some are missing or there are too few. The same report is the page
``.run/<recipe>/verify.html`` and, with ``--json``, the last line of standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import add_server_options
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.running_server import running_server
from pipelines.deploy.server import run_directory
from pipelines.errors import InvalidRequestError, RecipeError
from pipelines.program import EXIT_INCONCLUSIVE, run_program
from pipelines.validation.exact.plan import LEAST_PROMPTS
from pipelines.validation.openai import command
from pipelines.validation.own import verify_own
from pipelines.validation.reference import compare_with_reference
from pipelines.validation.report import add_report_options, show
from pipelines.validation.size import MOST_PROMPTS, Size, add_size_options
from pipelines.validation.stopping import stoppable, stopped_early


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    if command.is_asked_for(command_line):
        return command.main(command_line)
    parser = _parser()
    options = parser.parse_args(command_line)
    size = Size.of(options)
    try:
        prompts = choose_prompts(options.prompts, options.recipe)
        prompts.draw(options.num_prompts or MOST_PROMPTS, least=options.num_prompts or LEAST_PROMPTS)
    except (InvalidRequestError, RecipeError) as error:
        parser.error(str(error))

    def work() -> int:
        page = options.html or run_directory(options.recipe) / "verify.html"
        with running_server(options.url, options.recipe) as url, stopped_early(size.minutes) as ends_at_s:
            if options.reference:
                section = stoppable(compare_with_reference)(url, options.recipe, prompts, print)
                about = conditions("pipelines.validation", command_line, recipe=options.recipe)
                return show([section], about, page, as_json=options.json)
            asked = prompts, options.only, command_line
            sections, context = stoppable(verify_own)(url, options.recipe, size, ends_at_s, *asked)
        return show(sections, context, page, as_json=options.json)

    result = {"verdict": "inconclusive"} if options.json else None
    return run_program(work, result, EXIT_INCONCLUSIVE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof verify",
        description="Prove that generate gives the answers of generate_target.",
    )
    add_server_options(parser)
    add_size_options(parser, LEAST_PROMPTS)
    parser.add_argument(
        "--only",
        choices=("equality", "distribution"),
        default="",
        help="run one of the two parts: equality token by token, or the distribution of unseeded answers",
    )
    parser.add_argument(
        "--reference",
        action="store_true",
        help="instead, compare greedy answers of the target with what transformers computes of the "
        "checkpoint; needs torch",
    )
    add_report_options(parser, ".run/<recipe>/verify.html")
    parser.epilog = (
        "To compare two OpenAI-compatible servers: --against URL --control URL; add --help for its options."
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
