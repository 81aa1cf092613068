"""Prove on a running server that speculation changes no answer; a release is judged by this report.

``python -m pipelines.validation --recipe demo`` runs the full proof, with ``--quick`` a short one of a minute
or two. ``--against URL`` examines any Triton server with NVIDIA's tensor names, and with ``--control
URL`` or ``--baseline FILE`` any OpenAI-compatible one (``pipelines/validation/openai``).

Exit codes: 0 pass; 1 a difference, or nothing was tested; 2 wrong usage; 3 inconclusive: all compared answers
are equal, but some are missing or there are too few. The last line of standard output is JSON; the same
report for people is the page ``.run/<recipe>/verify.html``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.command_line.chat_prompts import check_chats
from pipelines.command_line.options import add_server_options, whole_number, whole_numbers
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import running_server
from pipelines.deploy.server import RUN, run_directory
from pipelines.errors import InvalidRequestError, RecipeError
from pipelines.program import run_program
from pipelines.validation.audit.against import NVIDIA, Foreign
from pipelines.validation.audit.nvidia_server import ModelNames
from pipelines.validation.exact.run import LEAST_PROMPTS, QUICK, RELEASE, Size
from pipelines.validation.exact.sections import PASSES
from pipelines.validation.openai import command
from pipelines.validation.report import Report, show
from pipelines.validation.runs import Conditions, Own, verify_other, verify_own
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
        # The recipe is that of our own server.
        prompts = choose_prompts(options.prompts, "" if options.against else options.recipe).for_judging()
        prompts.draw(size.num_prompts, least=options.num_prompts or LEAST_PROMPTS)
    except (InvalidRequestError, RecipeError) as error:
        parser.error(str(error))

    def work() -> int:
        page = options.html or (RUN if options.against else run_directory(options.recipe)) / "verify.html"
        report, context = _verify(options, size, prompts, command_line)
        return show(report, context, page, printed=PASSES)

    return run_program(work, result={"verdict": "inconclusive"})


def _size(options: argparse.Namespace) -> Size:
    size = QUICK if options.quick else RELEASE
    return replace(
        size,
        num_prompts=options.num_prompts or size.num_prompts,
        max_tokens=options.max_tokens or size.max_tokens,
    )


def _verify(
    options: argparse.Namespace, size: Size, prompts: Prompts, command_line: list[str]
) -> tuple[Report, Conditions]:
    if options.against:
        drawn = prompts.draw(size.num_prompts)
        check_chats(drawn, None)
        foreign = Foreign(
            url=options.against,
            prompts=drawn.all,
            names=ModelNames(options.model, options.control_model, options.engine_model),
            expect=options.expect,
            draft_lengths=options.draft_lengths,
            max_tokens=size.max_tokens,
            tokenizer=options.tokenizer,
        )
        with stopped_early_by_signals():
            return verify_other(foreign, drawn, command_line)
    with running_server(options.url, options.recipe) as url, stopped_early_by_signals():
        return verify_own(Own(url, options.recipe, size, prompts, options.only), command_line)


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
    parser.add_argument("--html", type=Path, help="page for the report (default: .run/<recipe>/verify.html)")
    parser.epilog = "With --control URL, --against compares two OpenAI-compatible servers: --control --help."
    other = parser.add_argument_group("any Triton server with NVIDIA's tensor names")
    other.add_argument(
        "--against", metavar="URL", default="", help="address of the server; no server is started"
    )
    other.add_argument("--model", default=NVIDIA.candidate, help="model with a draft (%(default)s)")
    other.add_argument(
        "--control-model", default=NVIDIA.control, help="model of the target alone (%(default)s)"
    )
    other.add_argument(
        "--engine-model", default=NVIDIA.engine, help="model that returns logits (%(default)s)"
    )
    other.add_argument(
        "--expect",
        choices=("audit", "exact"),
        default="audit",
        help="audit: distinguish ties from faults if results depend on the batch; exact: require equality",
    )
    other.add_argument(
        "--draft-lengths",
        type=whole_numbers(1),
        default=(4,),
        help="draft lengths to compare, such as 1,4 (default: 4)",
    )
    other.add_argument(
        "--tokenizer", type=Path, help="tokenizer.json, if the server has no model preprocessing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
