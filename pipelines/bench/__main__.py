"""Measure what speculation gains on a server, side by side with the target alone.

``python -m pipelines.bench --recipe demo-large``, with ``--quick`` for a few minutes

JSON and a page with plots are written to ``results/``. Exit codes: 0 measured; 1 a request failed or
answers differ; 2 wrong usage. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.bench.batcher_overhead import measure_all
from pipelines.bench.decode_step import DecodeStep, measure_decode_step
from pipelines.bench.document import as_document
from pipelines.bench.domain_shift import Phase, measure_domain_shift
from pipelines.bench.figures import figures_of
from pipelines.bench.html_page import as_html
from pipelines.bench.loads import NUM_ARRIVALS
from pipelines.bench.measuring import Measurement, measure, num_different_answers, warm_up
from pipelines.bench.options import Size, make_parser, size_of
from pipelines.bench.plan import Plan, describe, num_requests_needed
from pipelines.bench.progress import MeasurementProgress
from pipelines.bench.prompt_sets import ADVERSARIAL, CODE, PromptSet, adversarial_set, read_prompt_sets
from pipelines.bench.report import as_text
from pipelines.bench.results import Results
from pipelines.bench.slo import Slo, default_slo
from pipelines.client import Client
from pipelines.client.at_once import Workers
from pipelines.command_line import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.running_server import engine_directories, running_server
from pipelines.text.vocabulary import Vocabulary
from pipelines.whole_file import write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    size = size_of(options)
    count = num_requests_needed(size.concurrency, size.rates)
    try:
        from_files = read_prompt_sets(size.sets, count, options.temperature, options.prompt_file)
    except InvalidRequestError as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with running_server(options.url, options.recipe) as url:
            results = _bench(url, size, from_files, count, options, command_line)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        print(json.dumps({"error": str(error)}))
        return EXIT_FAIL
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    _show(results, options.results)
    return EXIT_FAIL if results.num_different else EXIT_PASS


def _bench(
    url: str,
    size: Size,
    from_files: dict[str, PromptSet],
    count: int,
    options: argparse.Namespace,
    command_line: list[str],
) -> Results:
    with Client.connect(url) as client:
        engine_dirs = engine_directories(client)
        engines = engine_conditions(engine_dirs)
        context = conditions(
            "pipelines.bench",
            command_line,
            recipe=options.recipe,
            triton_version=client.server_version(),
            engines=engines,
            temperature=options.temperature,
        )
    prompt_sets = dict(from_files)
    if ADVERSARIAL in size.sets:
        prompt_sets[ADVERSARIAL] = adversarial_set(count, _vocabulary(engine_dirs.get("target")))
    plan = Plan(
        prompt_sets=tuple(prompt_sets[name] for name in size.sets),
        concurrency=size.concurrency,
        shares_of_capacity=size.rates,
        draft_lengths=size.draft_lengths,
        max_tokens=size.max_tokens,
        repetitions=options.repetitions,
    )
    with Workers.connect(url, max(*size.concurrency, NUM_ARRIVALS), streaming=True) as workers:
        print("warming up ...", file=sys.stderr, flush=True)
        pace, alone = warm_up(plan, workers)
        print(describe(plan, pace), file=sys.stderr, flush=True)
        measurements = measure(plan, pace, workers, MeasurementProgress(plan, pace))
        phases = _domain_shift(plan, workers)
    slo = _slo(options, alone[-1])
    print("measuring memory bandwidth, decode step and the batcher's own cost ...", file=sys.stderr)
    stamp = context["date"].replace(":", "").replace("-", "")
    return Results(
        run_id=f"bench-{Path(options.recipe).stem}-{stamp}",
        plan=plan,
        slo=slo,
        capacity_per_s=pace.capacity_per_s,
        cells=tuple(figures_of(measurements, plan.arms, slo)),
        phases=tuple(phases),
        step=_decode_step(url, plan, engines.get("target", {})),
        overheads=tuple(measure_all()),
        num_different=num_different_answers([*alone, *measurements]),
        conditions=context,
    )


def _vocabulary(engine_dir: Path | None) -> Vocabulary | None:
    try:
        return Vocabulary.from_file(engine_dir / "tokenizer.json") if engine_dir else None
    except DraftproofError:  # the server runs on another machine
        return None


def _slo(options: argparse.Namespace, single: Measurement) -> Slo:
    given_ttft, given_itl = options.slo_ttft_ms, options.slo_itl_ms
    if given_ttft is not None and given_itl is not None:
        return Slo(given_ttft / 1e3, given_itl / 1e3)
    default = default_slo(single.generations)
    return Slo(
        default.ttft_s if given_ttft is None else given_ttft / 1e3,
        default.itl_s if given_itl is None else given_itl / 1e3,
    )


def _domain_shift(plan: Plan, workers: Workers) -> list[Phase]:
    sets = {each.name: each for each in plan.prompt_sets}
    if CODE not in sets or ADVERSARIAL not in sets:
        return []
    print("measuring the domain shift ...", file=sys.stderr, flush=True)
    return measure_domain_shift(sets[CODE], sets[ADVERSARIAL], plan.max_tokens, plan.repetitions, workers)


def _decode_step(url: str, plan: Plan, engine: dict[str, Any]) -> DecodeStep | None:
    if "weight_bytes_per_step" not in engine:
        print("no decode step: the target's engine is not on this machine, or not embedded", file=sys.stderr)
        return None
    with Client.connect(url) as client:
        return measure_decode_step(
            client.generate,
            plan.single.first_requests,
            plan.max_tokens,
            engine["weight_bytes_per_step"],
            engine["num_threads"],
        )


def _show(results: Results, folder: Path) -> None:
    document = as_document(results)
    print(as_text(results))
    if results.num_different:
        print(f"FAIL: {results.num_different} answers differ from the target's own; run 'make verify'")
    page = folder / f"{results.run_id}.html"
    write_whole(page, as_html(results))
    write_whole(page.with_suffix(".json"), json.dumps(document, indent=1) + "\n")
    print(f"the page is {page}, the same as JSON beside it")
    print(json.dumps(document))


if __name__ == "__main__":
    sys.exit(main())
