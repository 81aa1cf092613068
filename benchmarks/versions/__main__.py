"""Compare the checkout with another commit of this repository: speed and start-up.

``python -m benchmarks.versions --before COMMIT`` copies both into a temporary folder and serves a recipe from
each. The commit uses the engines of the checkout if it would build the same ones, and builds its own
otherwise. The last line of standard output is JSON. Exit codes: 0 success; 1 a version could not be built or
served, or a request failed; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.versions.figures import figures_of, start_figures, table
from benchmarks.versions.pairs import AFTER, BEFORE, LOADS, MAX_TOKENS, measure_batches, measure_starts
from benchmarks.versions.version import ENGINES, Version, resolve
from pipelines.bench.prompt_sets import make_prompt_sets
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.chat_prompts import check_chats
from pipelines.command_line.given_prompts import add_prompts_option
from pipelines.command_line.options import whole_number
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        context = conditions(
            "benchmarks.versions", command_line, recipe=options.recipe, before=resolve(options.before)
        )
        with stopped_by_signals(), tempfile.TemporaryDirectory(prefix="versions-") as folder:
            _compare(options, Path(folder), context)
        return EXIT_PASS

    return run_program(work)


def _compare(options: argparse.Namespace, folder: Path, context: dict[str, object]) -> None:
    count = max(load.num_requests for load in LOADS)
    judged = choose_prompts(options.prompts, options.recipe).for_judging().of_largest_set()
    drawn = judged.draw(count, least=count)
    check_chats(drawn, None)
    context["prompts"] = drawn.document()
    (prompts,) = make_prompt_sets(drawn, tuple(drawn.sets), count, 0.0).values()
    versions = {
        BEFORE: Version.of_commit(options.before, folder / BEFORE, options.recipe),
        AFTER: Version.of_checkout(folder / AFTER, options.recipe),
    }
    _report("building the checkout")
    engines = versions[AFTER].build(ENGINES)
    _report(f"building {versions[BEFORE].name}")
    engines_before = versions[BEFORE].build(versions[AFTER].tree / "engines", other=engines)
    has_same_engines = engines.are_same_as(engines_before)
    starts = start_figures(measure_starts(versions, options.pairs, _report))
    with ExitStack() as stack:
        servers = {name: stack.enter_context(version.running()) for name, version in versions.items()}
        batches = measure_batches(servers, prompts, options.pairs, _report)
    settings = figures_of(batches.pairs)
    print(table(settings, starts))
    if not has_same_engines:
        print("the engines differ, and each version has calibrated its own")
    if batches.num_different:
        print(f"{batches.num_different} answers differ from the first answer to the same prompt")
    document = {
        "settings": [asdict(each) for each in settings],
        "starts": asdict(starts),
        "max_tokens": MAX_TOKENS,
        "num_different": batches.num_different,
        "has_same_engines": has_same_engines,
        "conditions": context,
    }
    print(json.dumps(document))


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description="Compare the speed and start-up of the checkout with another commit.",
    )
    parser.add_argument("--before", required=True, metavar="COMMIT", help="commit to compare with")
    parser.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    parser.add_argument(
        "--pairs",
        type=whole_number(2),
        default=30,
        help="start-ups of each version, and batches of each protocol and load (%(default)s)",
    )
    add_prompts_option(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
