"""Measure what speculation gains on a server, side by side with the target alone.

``python -m pipelines.bench --url grpc://127.0.0.1:8001 --concurrency 1,4,8 --draft-lengths 2,4,6``

The result is written to ``results/<run id>.json`` too. Exit codes: 0 measured; 1 a request failed or
answers differ; 2 wrong usage. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.bench.batcher_overhead import measure_all
from pipelines.bench.decode_step import DecodeStep, measure_decode_step
from pipelines.bench.figures import figures_of, num_different_answers
from pipelines.bench.load import Measurement, Plan, measure, num_requests
from pipelines.bench.report import as_document, conclusion, table
from pipelines.client import Client
from pipelines.client.at_once import Workers
from pipelines.command_line import (
    EXIT_FAIL,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    Progress,
    add_server_options,
    whole_number,
    whole_numbers,
)
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.prompts import read_prompts
from pipelines.running_server import engine_directories, running_server

_PROMPT_CACHE = "warm for every arm, so TTFT holds no computation of the prompt"
RESULTS = Path(__file__).resolve().parents[2] / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        plan = Plan(
            prompts=read_prompts(options.prompt_file, num_requests(max(options.concurrency))),
            concurrency=options.concurrency,
            draft_lengths=options.draft_lengths,
            max_tokens=options.max_tokens,
            repetitions=options.repetitions,
        )
    except InvalidRequestError as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with running_server(options.url, options.recipe) as url:
            document = _bench(url, plan, options, command_line)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        print(json.dumps({"error": str(error)}))
        return EXIT_FAIL
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    path = write_result(options.results, document)
    print(f"written to {path}")
    print(json.dumps(document))
    return EXIT_FAIL if document["answers_that_differ"] else EXIT_PASS


def write_result(folder: Path, document: dict[str, Any]) -> Path:
    """Write ``<folder>/<run id>.json`` as a whole or not at all; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['run_id']}.json"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)
    return path


def _bench(url: str, plan: Plan, options: argparse.Namespace, command_line: list[str]) -> dict[str, Any]:
    with Client.connect(url) as client:
        engine_dirs = engine_directories(client)
        engines = engine_conditions(engine_dirs)
        context = conditions(
            "pipelines.bench",
            command_line,
            recipe=options.recipe,
            triton_version=client.server_version(),
            engines=engines,
            transport=url.split("://")[0],
            streaming=options.stream,
            prompt_kv_cache=_PROMPT_CACHE,
        )
    num_measurements = len(plan.concurrency) * plan.repetitions * len(plan.arms)
    progress = Progress()
    done: list[Measurement] = []

    def on_measurement(measurement: Measurement) -> None:
        done.append(measurement)
        progress.clear()
        what = (
            f"{measurement.num_at_once} at once, repetition {measurement.repetition + 1}, {measurement.arm}"
        )
        rate = f"{measurement.output_tokens_per_s:.1f} tokens/s"
        print(f"[{len(done)}/{num_measurements}] {what}: {rate}", file=sys.stderr, flush=True)
        progress.show("measuring ...")

    progress.show("warming up ...")
    with Workers.connect(url, max(plan.concurrency), streaming=options.stream) as workers:
        measurements = measure(plan, workers, on_measurement)
    progress.show("measuring memory bandwidth, decode step and the batcher's own cost ...")
    step = _decode_step(url, plan, engines.get("target", {})) if 1 in plan.concurrency else None
    overheads = measure_all()
    progress.clear()
    figures = figures_of(measurements)
    num_different = num_different_answers(measurements)
    print(table(figures))
    print("brackets: least..greatest repetition for tokens/s and ratio, quartiles of requests for times")
    print(f"prompts: {_PROMPT_CACHE}")
    print(conclusion(figures, step, overheads))
    if num_different:
        print(f"FAIL: {num_different} answers differ from the target's own; run 'make verify'")
    stamp = context["date"].replace(":", "").replace("-", "")
    return {
        "run_id": f"bench-{Path(options.recipe).stem}-{stamp}",
        **as_document(figures, step, overheads, num_different),
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "conditions": context,
    }


def _decode_step(url: str, plan: Plan, engine: dict[str, Any]) -> DecodeStep | None:
    if not engine:
        print("no decode step: the target's engine is not on this machine", file=sys.stderr)
        return None
    with Client.connect(url) as client:
        return measure_decode_step(
            client.generate,
            plan.prompts[: num_requests(1)],
            plan.max_tokens,
            engine["weight_bytes_per_step"],
            engine["num_threads"],
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.bench", description="Time generate against generate_target in one run."
    )
    add_server_options(parser)
    parser.add_argument(
        "--concurrency", type=whole_numbers(1), default=(1, 4, 8), help="requests at once (default: 1,4,8)"
    )
    parser.add_argument(
        "--draft-lengths", type=whole_numbers(0), default=(2, 4, 6), help="fixed K (default: 2,4,6)"
    )
    parser.add_argument("--max-tokens", type=whole_number(2), default=128, help="per request (%(default)s)")
    parser.add_argument("--repetitions", type=whole_number(1), default=3, help="of each arm (%(default)s)")
    parser.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for streams; without, there is no TTFT and no ITL, and client and server do less",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result (results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
