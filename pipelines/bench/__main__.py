"""Measure the speed-up of speculation on a server against the target alone.

``draftproof bench --recipe demo-large`` runs the full benchmark, with ``--quick`` a short one of a few
minutes. It prints one table and one verdict, and writes JSON to ``results/``, also when Ctrl-C or SIGTERM
stops it: then with the cells that it has measured. Exit codes: 0 measured; 1 a request failed, or answers
differ; 2 wrong usage; 130 stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.atomic_file import write_whole
from pipelines.bench.figures import figures_of
from pipelines.bench.measuring import Measurement, measure, num_different_answers, streaming, warm_up
from pipelines.bench.options import Size, make_parser, size_of
from pipelines.bench.plan import Plan, describe, requests_needed
from pipelines.bench.prompt_sets import draw_sets, make_prompt_sets, names_of_sets
from pipelines.bench.report import Results, as_document, as_text
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import fitting_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories, running_server
from pipelines.errors import InvalidRequestError, RecipeError
from pipelines.program import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS, run_program, stopped_by_signals
from pipelines.time_left import TimeLeft


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    size = size_of(options)
    if not 0 <= options.temperature < math.inf:
        parser.error(f"--temperature {options.temperature:g} is not a number of at least 0")
    try:
        prompts = choose_prompts(options.prompts, options.recipe)
        names = names_of_sets(prompts, options.sets, is_quick=options.quick)
        draw_sets(prompts, names, requests_needed(max(size.concurrency)))
    except (InvalidRequestError, RecipeError) as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        with stopped_by_signals(), running_server(options.url, options.recipe) as url:
            results = _bench(url, size, prompts, names, options, command_line)
        return _show(results, options)

    return run_program(work, result={} if options.json else None)


def _bench(
    url: str,
    size: Size,
    prompts: Prompts,
    names: tuple[str, ...],
    options: argparse.Namespace,
    command_line: list[str],
) -> Results:
    with Client.connect(url) as client:
        drawn = draw_sets(
            fitting_prompts(prompts, client, size.max_tokens), names, requests_needed(max(size.concurrency))
        )
        context = conditions(
            "pipelines.bench",
            command_line,
            recipe=options.recipe,
            triton_version=client.server_version(),
            engines=engine_conditions(engine_directories(client)),
            prompts=drawn.document(),
            temperature=options.temperature,
        )
        for line in drawn.lines():
            _report(line)
        plan = Plan(
            prompt_sets=make_prompt_sets(drawn, options.temperature),
            concurrency=size.concurrency,
            draft_lengths=size.draft_lengths,
            max_tokens=size.max_tokens,
            repetitions=options.repetitions,
        )
        ask = streaming(client)
        _report("warming up ...")
        alone = warm_up(plan, ask)
        _report(describe(plan))
        progress = TimeLeft(
            plan.num_requests, _report, lambda done: f"{done:.0f} of {plan.num_requests} requests"
        )
        measurements: list[Measurement] = []
        was_stopped = False
        try:
            for measurement in measure(plan, ask):
                measurements.append(measurement)
                progress.advance(len(measurement.generations))
        except KeyboardInterrupt:
            was_stopped = True
    cells = figures_of(measurements, plan.arms)
    if not cells:
        raise KeyboardInterrupt
    stamp = context["date"].replace(":", "").replace("-", "")
    return Results(
        run_id=f"bench-{Path(options.recipe).stem}-{stamp}",
        plan=plan,
        cells=tuple(cells),
        num_different=num_different_answers([*alone, *measurements]),
        conditions=context,
        was_stopped=was_stopped,
    )


def _show(results: Results, options: argparse.Namespace) -> int:
    document = as_document(results)
    code = EXIT_FAIL if results.num_different else EXIT_INTERRUPTED if results.was_stopped else EXIT_PASS
    print(as_text(results))
    if results.num_different:
        print(f"FAIL: {results.num_different} answers differ from the target's own; run 'draftproof verify'")
    if results.was_stopped:
        print(f"stopped: {len(results.cells)} of {len(results.plan.cells)} loads are measured")
    file = options.results / f"{results.run_id}.json"
    write_whole(file, json.dumps(document, indent=1) + "\n")
    print(f"wrote {file}")
    if options.json:
        print(json.dumps(document))
    return code


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
