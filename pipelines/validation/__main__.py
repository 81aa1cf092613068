"""Prove on a running server that speculation changes no answer; the report that a release is judged by.

``python -m pipelines.validation --recipe demo``, with ``--quick`` for a minute or two;
``--against URL`` examines any Triton server with NVIDIA's tensor names.

Exit codes: 0 pass; 1 a difference, or nothing was tested; 2 wrong usage; 3 inconclusive: what was compared
is equal, but the server did not answer everything, or too little was asked. The last line of standard
output is JSON; the same report for people is a page, ``.run/<recipe>/verify.html``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.command_line import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    add_server_options,
    whole_number,
    whole_numbers,
)
from pipelines.deploy.server import RUN, run_directory
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.prompts import CORPORA, Prompt, draw_prompts
from pipelines.running_server import running_server
from pipelines.validation.against import NVIDIA, Foreign
from pipelines.validation.exact_sections import PASSES
from pipelines.validation.foreign_server import ModelNames
from pipelines.validation.html_report import as_html
from pipelines.validation.report import Report, as_document, as_text
from pipelines.validation.runs import Conditions, Own, verify_other, verify_own
from pipelines.validation.section import Verdict, joint_verdict
from pipelines.validation.sizes import QUICK, RELEASE, Size
from pipelines.whole_file import write_whole

_EXIT_CODES: dict[Verdict, int] = {
    "pass": EXIT_PASS,
    "fail": EXIT_FAIL,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.only == "law" and options.quick:
        parser.error("--quick leaves the law out")
    size = _size(options)
    try:
        files = (options.prompt_file,) if options.prompt_file else CORPORA
        prompts = draw_prompts(files, size.num_prompts)
    except InvalidRequestError as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        page = options.html or (RUN if options.against else run_directory(options.recipe)) / "verify.html"
        report, context = _verify(options, size, prompts, command_line)
    except DraftproofError as error:
        print(f"inconclusive: {error}", file=sys.stderr)
        print(json.dumps({"verdict": "inconclusive", "error": str(error)}))
        return EXIT_INCONCLUSIVE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return _show(report, context, page)


def _size(options: argparse.Namespace) -> Size:
    size = QUICK if options.quick else RELEASE
    return replace(
        size,
        num_prompts=options.prompts or size.num_prompts,
        max_tokens=options.max_tokens or size.max_tokens,
    )


def _verify(
    options: argparse.Namespace, size: Size, prompts: tuple[Prompt, ...], command_line: list[str]
) -> tuple[Report, Conditions]:
    if options.against:
        foreign = Foreign(
            url=options.against,
            prompts=prompts,
            names=ModelNames(options.model, options.control_model, options.engine_model),
            expect=options.expect,
            draft_lengths=options.draft_lengths,
            max_tokens=size.max_tokens,
            tokenizer=options.tokenizer,
        )
        return verify_other(foreign, command_line)
    with running_server(options.url, options.recipe) as url:
        return verify_own(Own(url, options.recipe, size, prompts, options.only), command_line)


def _show(report: Report, context: Conditions, page: Path) -> int:
    for section in report.sections:
        if section.title != PASSES:  # shown while they ran
            print(as_text(section))
    for found in report.divergences:
        print(f"\nprompt {found.prompt_id}, {found.asked}: {found.what}")
    write_whole(page, as_html(report, context))
    verdict = joint_verdict(report.sections)
    print(f"\n{verdict.upper()}; the report is {page}")
    print(json.dumps(as_document(report, context)))
    return _EXIT_CODES[verdict]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.validation",
        description="Prove that generate gives the answers of generate_target.",
    )
    add_server_options(parser)
    parser.set_defaults(prompt_file=None)
    parser.add_argument(
        "--quick", action="store_true", help="a minute or two: fewer prompts and tokens, the same design"
    )
    parser.add_argument(
        "--prompts",
        type=whole_number(2),
        help=f"how many (default: {RELEASE.num_prompts}, with --quick {QUICK.num_prompts})",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1),
        help=f"per answer (default: {RELEASE.max_tokens}, with --quick {QUICK.max_tokens})",
    )
    parser.add_argument(
        "--only",
        choices=("equality", "law"),
        default="",
        help="one of the two parts, for instance the one that was inconclusive: equality token by token, or "
        "the law of answers without a seed",
    )
    parser.add_argument("--html", type=Path, help="page to write (default: .run/<recipe>/verify.html)")
    other = parser.add_argument_group("any Triton server with NVIDIA's tensor names")
    other.add_argument("--against", metavar="URL", default="", help="its address; ours is left alone")
    other.add_argument("--model", default=NVIDIA.candidate, help="with a draft (%(default)s)")
    other.add_argument("--control-model", default=NVIDIA.control, help="the target alone (%(default)s)")
    other.add_argument("--engine-model", default=NVIDIA.engine, help="asked for logits (%(default)s)")
    other.add_argument(
        "--expect",
        choices=("audit", "exact"),
        default="audit",
        help="audit: tell ties from faults, where results depend on the batch; exact: equality",
    )
    other.add_argument("--draft-lengths", type=whole_numbers(1), default=(4,), help="such as 1,4 (4)")
    other.add_argument("--tokenizer", type=Path, help="tokenizer.json, if there is no model preprocessing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
