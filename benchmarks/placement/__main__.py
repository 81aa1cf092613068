"""Measure how the choice of servers changes the time to first token, on three real servers.

``python -m benchmarks.placement`` starts three servers of a recipe, each with one thread and a cache that
holds at most half of the system prompts, and asks them through front doors that choose servers as the
product does, by load alone, and at random. Each round sends the same requests at the same times with each
choice, in random order. The last line of standard output is JSON. Exit codes: 0 success; 1 a request failed;
2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.placement.figures import Run, figures_of
from benchmarks.placement.fleet import (
    AT_RANDOM,
    BY_PREFIX,
    CHOICES,
    NUM_BLOCKS,
    NUM_SERVERS,
    Fleet,
    running_fleet,
    single_server,
    small,
)
from benchmarks.placement.workload import Batch, Workload, draw, questions_of, texts_of
from build.built_pair import build_pair
from build.recipe import load_recipe
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client, Generation
from pipelines.client.workers import Job, Workers
from pipelines.command_line.options import whole_number
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import count_tokens, read_tokenizer
from pipelines.deploy.ports import HOST
from pipelines.deploy.server import RUN
from pipelines.errors import DraftproofError
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

_MOST_AT_ONCE = 64
_PUBLISHED_WITHIN_S = 1.0  # the models publish their counters five times a second


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parse(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        workload = Workload()
        pair = build_pair(small(load_recipe(options.recipe), NUM_BLOCKS), print)
        prompts = choose_prompts(None, options.recipe).for_judging()
        counted = count_tokens(prompts, read_tokenizer(pair.target_engine))
        texts, questions = texts_of(counted, workload), questions_of(counted, workload)
        with stopped_by_signals(), running_fleet(pair, RUN / "placement") as fleet:
            with Client.connect(f"grpc://{HOST}:{fleet.servers[0].ports.grpc}") as client:
                version = client.server_version()
            context = conditions(
                "benchmarks.placement",
                command_line,
                recipe=options.recipe,
                triton_version=version,
                engines=engine_conditions({"target": pair.target_engine, "draft": pair.draft_engine}),
                prompts=counted.document(),
            )
            runs = _measure(fleet, workload, texts, questions, options.rounds)
        document = {
            **asdict(workload),
            "num_servers": NUM_SERVERS,
            "cache_tokens": 32 * (NUM_BLOCKS - 1),  # one block is reserved
            "rounds": options.rounds,
            "choices": figures_of(runs, BY_PREFIX),
            "conditions": context,
        }
        print(json.dumps(document))
        return EXIT_PASS

    return run_program(work)


def _measure(
    fleet: Fleet, workload: Workload, texts: Sequence[str], questions: Sequence[str], rounds: int
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {choice: [] for choice in CHOICES}
    order = random.Random(0)
    workers = Workers([fleet.ask] * _MOST_AT_ONCE)
    for number in range(rounds):
        first, then = (
            draw(texts, questions, workload, count, 2 * number + part)
            for part, count in enumerate((workload.num_warm_up, workload.num_requests))
        )
        for choice in order.sample(CHOICES, len(CHOICES)):
            _answers(workers, first, choice, 2 * number)
            time.sleep(_PUBLISHED_WITHIN_S)
            before = fleet.lookups()
            answers = _answers(workers, then, choice, 2 * number + 1)
            time.sleep(_PUBLISHED_WITHIN_S)
            times_s = tuple(answer.ttft_s for answer in answers if answer.ttft_s is not None)
            runs[choice].append(Run(times_s, fleet.lookups().since(before)))
            mean_ms = 1e3 * sum(times_s) / len(times_s)
            print(f"round {number + 1}/{rounds}, {choice}: {mean_ms:.0f} ms", file=sys.stderr, flush=True)
    return runs


def _answers(workers: Workers, batch: Batch, choice: str, seed: int) -> list[Generation]:
    drawn = random.Random(seed)
    doors = [
        single_server(drawn.randrange(NUM_SERVERS)) if choice == AT_RANDOM else choice for _ in batch.requests
    ]
    jobs = [Job(request, door) for request, door in zip(batch.requests, doors, strict=True)]
    answers = []
    for answer in workers.run(jobs, _MOST_AT_ONCE, arrivals_s=batch.arrivals_s):
        if isinstance(answer, DraftproofError):  # figures of the others would flatter the fleet
            raise answer
        answers.append(answer)
    return answers


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="recipe of the servers (%(default)s)")
    parser.add_argument("--rounds", type=whole_number(2), default=8, help="rounds (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
