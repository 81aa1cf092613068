"""Compare the checkout with another commit of this repository: speed, the front door's share, start-up.

``python -m benchmarks.versions --before COMMIT`` copies both into a temporary folder and serves a recipe from
each. The commit uses the engines of the checkout if it would build the same ones, and builds its own
otherwise. Exit codes: 0 success; 1 a version could not be built or served, or a request failed; 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import Result, parser_of, run_benchmark, say
from benchmarks.versions.figures import Change, figures_of, front_doors_share, table
from benchmarks.versions.pairs import AFTER, BEFORE, LOADS, MAX_TOKENS, measure_batches, measure_starts
from benchmarks.versions.version import ENGINES, Version, resolve
from pipelines.bench.prompt_sets import make_prompt_sets
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.chat_prompts import check_chats
from pipelines.command_line.options import whole_number
from pipelines.command_line.prompt_choice import choose_prompts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.versions", __doc__ or "", "demo")
    parser.add_argument("--before", required=True, metavar="COMMIT", help="commit to compare with")
    parser.add_argument(
        "--pairs",
        type=whole_number(2),
        default=30,
        help="start-ups of each version, and batches of each protocol and load (%(default)s)",
    )
    return run_benchmark(parser, _compare, arguments)


def _compare(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions(
        "benchmarks.versions", command_line, recipe=options.recipe, before=resolve(options.before)
    )
    largest, count = choose_prompts(options.prompts, options.recipe).of_largest_set(), LOADS[-1].num_requests
    drawn = largest.draw(count, least=count)
    check_chats(drawn, None)
    (prompts,) = make_prompt_sets(drawn, 0.0)
    about["prompts"] = drawn.document()
    with tempfile.TemporaryDirectory(prefix="versions-") as scratch:
        versions = {
            BEFORE: Version.of_commit(options.before, Path(scratch) / BEFORE, options.recipe),
            AFTER: Version.of_checkout(Path(scratch) / AFTER, options.recipe),
        }
        say("building the checkout")
        engines = versions[AFTER].build(ENGINES)
        say(f"building {versions[BEFORE].name}")
        engines_before = versions[BEFORE].build(versions[AFTER].tree / "engines")
        has_same_engines = engines.are_same_as(engines_before)
        starts_s = Change.of(measure_starts(versions, options.pairs, say))
        with ExitStack() as stack:
            servers = {name: stack.enter_context(version.running()) for name, version in versions.items()}
            pairs, num_different = measure_batches(servers, prompts, options.pairs, say)
    settings, share_ms = figures_of(pairs), front_doors_share(pairs)
    notes = [] if has_same_engines else ["The engines differ."]
    notes.append(f"{num_different} answers differ.")
    document = {
        "settings": [asdict(each) for each in settings],
        "front_doors_share_ms": asdict(share_ms),
        "starts_s": asdict(starts_s),
        "max_tokens": MAX_TOKENS,
        "num_different": num_different,
        "has_same_engines": has_same_engines,
        "conditions": about,
    }
    return Result("\n".join([table(settings, share_ms, starts_s), *notes]), document)


if __name__ == "__main__":
    sys.exit(main())
