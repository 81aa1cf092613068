"""Prove on a running server that speculation changes no answer; the report that a release is judged by.

``python -m pipelines.validation --recipe demo``, with ``--quick`` for a minute or two

Exit codes: 0 pass; 1 a difference, or nothing was tested; 2 wrong usage; 3 inconclusive: what was compared
is equal, but the server did not answer everything, or too little was asked. The last line of standard
output is JSON; the same report for people is a page, ``.run/<recipe>/verify.html``.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.client import Client
from pipelines.command_line import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    add_server_options,
    whole_number,
)
from pipelines.conditions import conditions, engine_conditions
from pipelines.deploy.server import run_directory
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.prompts import CORPORA, Prompt, draw_prompts
from pipelines.running_server import engine_directories, running_server
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.exact import run_exact
from pipelines.validation.exact_sections import PASSES
from pipelines.validation.html_report import as_html, write_page
from pipelines.validation.plan import LOADS
from pipelines.validation.report import Report, as_document, as_text
from pipelines.validation.section import Verdict, joint_verdict
from pipelines.validation.sizes import QUICK, RELEASE, Size, read_limits

_EXIT_CODES: dict[Verdict, int] = {
    "pass": EXIT_PASS,
    "fail": EXIT_FAIL,
    "inconclusive": EXIT_INCONCLUSIVE,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    size = _size(options)
    try:
        files = (options.prompt_file,) if options.prompt_file else CORPORA
        prompts = draw_prompts(files, size.num_prompts)
    except InvalidRequestError as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        page = options.html or run_directory(options.recipe) / "verify.html"
        with running_server(options.url, options.recipe) as url:
            report, context = _verify(url, size, prompts, options.recipe, command_line)
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
    url: str, size: Size, prompts: tuple[Prompt, ...], recipe: str, command_line: list[str]
) -> tuple[Report, dict[str, Any]]:
    nonce = secrets.token_hex(4)
    with ExitStack() as clients:
        connected = [clients.enter_context(Client.connect(url)) for _ in range(max(LOADS) + 1)]
        engine_dirs = engine_directories(connected[0])
        context = conditions(
            "pipelines.validation",
            command_line,
            recipe=recipe,
            triton_version=connected[0].server_version(),
            engines=engine_conditions(engine_dirs),
            nonce=nonce,
        )
        limits = read_limits(connected[0].model_parameters("speculative"))
        vocabulary = _vocabulary(engine_dirs.get("target"))
        return run_exact(size, prompts, limits, connected, vocabulary, nonce), context


def _vocabulary(engine_dir: Path | None) -> Vocabulary | None:
    try:
        return Vocabulary.from_file(engine_dir / "tokenizer.json") if engine_dir else None
    except DraftproofError:  # the server runs on another machine: tokens are shown as ids
        return None


def _show(report: Report, context: dict[str, Any], page: Path) -> int:
    for section in report.sections:
        if section.title != PASSES:  # shown while they ran
            print(as_text(section))
    for found in report.divergences:
        print(f"\nprompt {found.prompt_id}, {found.asked}: {found.what}")
    write_page(page, as_html(report, context))
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
    parser.add_argument("--html", type=Path, help="page to write (default: .run/<recipe>/verify.html)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
