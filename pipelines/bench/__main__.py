"""Measure the speed-up of speculation on a server against the target alone.

``python -m pipelines.bench --recipe demo-large`` runs the full benchmark, with ``--quick`` a short one of a
few minutes. It writes JSON and a page with plots to ``results/``. ``--compare`` judges the speed-ups by those
of an earlier run. Exit codes: 0 measured; 1 a request failed, answers differ, or a speed-up is proven to have
lost more than 3 %; 2 wrong usage. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.atomic_file import write_whole
from pipelines.bench.costs.batcher_overhead import measure_all
from pipelines.bench.costs.decode_step import DecodeStep, measure_decode_step
from pipelines.bench.costs.domain_shift import Phase, measure_domain_shift
from pipelines.bench.loads import NUM_ARRIVALS
from pipelines.bench.measuring import Measurement, measure, num_different_answers, warm_up
from pipelines.bench.options import Size, make_parser, size_of
from pipelines.bench.plan import Plan, describe, num_requests_needed
from pipelines.bench.progress import MeasurementProgress
from pipelines.bench.prompt_sets import (
    ADVERSARIAL,
    GENERATED,
    PromptSet,
    adversarial_set,
    draw_sets,
    make_prompt_sets,
    names_of_sets,
)
from pipelines.bench.report.changes import as_lines, changes, changes_document, read_earlier
from pipelines.bench.report.document import as_document
from pipelines.bench.report.figures import figures_of
from pipelines.bench.report.html_page import as_html
from pipelines.bench.report.results import Results
from pipelines.bench.report.text import as_text
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.bench.reporting.slo import Slo, default_slo
from pipelines.client import Client
from pipelines.client.workers import Workers
from pipelines.command_line.chat_prompts import check_chats_to_serve
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import fitting_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories, running_server
from pipelines.errors import DraftproofError, InvalidRequestError, RecipeError
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program
from pipelines.text.vocabulary import Vocabulary


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    size = size_of(options)
    count = num_requests_needed(size.concurrency, size.rates)
    try:
        prompts = choose_prompts(options.prompts, options.recipe).for_judging()
        names = names_of_sets(prompts, options.sets, is_quick=options.quick)
        draw_sets(prompts, names, count)
        earlier = None if options.compare is None else read_earlier(options.compare)
    except (InvalidRequestError, RecipeError) as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        check_chats_to_serve(prompts, options.url, options.recipe)
        with running_server(options.url, options.recipe) as url:
            results = _bench(url, size, prompts, names, options, command_line)
        return _show(results, options.results, earlier)

    return run_program(work, result={})


def _bench(
    url: str,
    size: Size,
    prompts: Prompts,
    names: tuple[str, ...],
    options: argparse.Namespace,
    command_line: list[str],
) -> Results:
    count = num_requests_needed(size.concurrency, size.rates)
    with Client.connect(url) as client:
        drawn = draw_sets(fitting_prompts(prompts, client, size.max_tokens), names, count)
        engine_dirs = engine_directories(client)
        engines = engine_conditions(engine_dirs)
        context = conditions(
            "pipelines.bench",
            command_line,
            recipe=options.recipe,
            triton_version=client.server_version(),
            engines=engines,
            prompts=drawn.document(),
            temperature=options.temperature,
        )
    for line in drawn.lines():
        print(line, file=sys.stderr, flush=True)
    prompt_sets = make_prompt_sets(drawn, names, count, options.temperature)
    if ADVERSARIAL in names:
        _add_adversarial(prompt_sets, count, engine_dirs.get("target"), is_required=bool(options.sets))
    plan = Plan(
        prompt_sets=tuple(prompt_sets[name] for name in names if name in prompt_sets),
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
    print("measuring memory bandwidth, decode step and overhead of the batcher ...", file=sys.stderr)
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


def _add_adversarial(
    prompt_sets: dict[str, PromptSet], count: int, engine_dir: Path | None, *, is_required: bool
) -> None:
    """Add the adversarial set; leave it out, with a message, if it was not requested and cannot be made."""
    try:
        prompt_sets[ADVERSARIAL] = adversarial_set(count, _vocabulary(engine_dir))
    except InvalidRequestError as error:
        if is_required:
            raise
        print(f"prompts: {error}", file=sys.stderr, flush=True)


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
    own = next((each for each in plan.prompt_sets if each.name not in GENERATED), None)
    if own is None or ADVERSARIAL not in sets:
        return []
    print("measuring the domain shift ...", file=sys.stderr, flush=True)
    return measure_domain_shift(own, sets[ADVERSARIAL], plan.max_tokens, plan.repetitions, workers)


def _decode_step(url: str, plan: Plan, engine: dict[str, Any]) -> DecodeStep | None:
    if "weight_bytes_per_step" not in engine:
        print(
            "skipping the decode step: the target's engine is not on this machine, or not embedded",
            file=sys.stderr,
        )
        return None
    with Client.connect(url) as client:
        return measure_decode_step(
            client.generate,
            plan.single.first_requests,
            plan.max_tokens,
            engine["weight_bytes_per_step"],
            engine["num_threads"],
        )


def _show(results: Results, folder: Path, earlier: dict[str, Any] | None) -> int:
    document = as_document(results)
    has_failed = results.num_different > 0
    print(as_text(results))
    if earlier is not None:
        compared = changes(earlier, document)
        has_failed |= any(each.is_regression for each in compared)
        document["compared"] = changes_document(earlier, compared)
        print("\n".join(as_lines(compared)))
    if results.num_different:
        print(f"FAIL: {results.num_different} answers differ from the target's own; run 'make verify'")
    page = folder / f"{results.run_id}.html"
    write_whole(page, as_html(results))
    write_whole(page.with_suffix(".json"), json.dumps(document, indent=1) + "\n")
    print(f"wrote {page} and {page.with_suffix('.json')}")
    print(json.dumps(document))
    return EXIT_FAIL if has_failed else EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
