"""Measure the latency that ``router`` adds to ``generate``.

``python -m benchmarks.router_cost --recipe demo-large`` sends each prompt to both models, alternately: one
request at a time to measure the time to the first token and per token, then concurrent requests to measure
output tokens per second. The last line of standard output is JSON. Exit codes: 0 success; 1 a request failed
or answers differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.one_server import drawn_prompts, server_conditions
from benchmarks.two_ways import MAX_TOKENS, Added, Ways, added_latency, in_turn, singles_in_turn
from pipelines.bench.arms import ADAPTIVE, Arm
from pipelines.bench.loads import ClosedLoop
from pipelines.bench.measuring import Measurement, num_different_answers, run_once
from pipelines.bench.plan import Cell
from pipelines.bench.prompt_sets import PromptSet
from pipelines.bench.report.blocks import Blocks, Interval
from pipelines.client.workers import Workers
from pipelines.command_line.chat_prompts import check_chats
from pipelines.command_line.options import whole_number
from pipelines.command_line.running_server import running_server
from pipelines.command_line.server_options import add_server_options
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program

WAYS: Ways = (ADAPTIVE, Arm("router"))
BUSY = ClosedLoop(8)
NUM_PROMPTS = 32


@dataclass(frozen=True)
class RouterCost:
    """Cost of the router.

    Attributes:
        ttft: Time to first token.
        itl: Inter-token latency.
        speed_ratio: Output tokens per second with the router divided by those without it.
        num_at_once: Concurrent requests for ``speed_ratio``.
        num_different: Answers that differ from the first answer to the same prompt.
    """

    ttft: Added
    itl: Added
    speed_ratio: Interval
    num_at_once: int
    num_different: int


def measure_router_cost(prompt_set: PromptSet, repetitions: int, workers: Workers) -> RouterCost:
    """Send requests directly and through the router, alternately.

    Args:
        prompt_set: Prompts to send in each repetition, after a warm-up.
        repetitions: Number of repetitions, at least 2.
        workers: Clients, as many as ``BUSY`` needs.

    Raises:
        DraftproofError: A request failed.
    """

    def run(cell: Cell, arm: Arm, repetition: int) -> Measurement:
        return run_once(cell, arm, MAX_TOKENS, workers, repetition)

    singles = singles_in_turn(prompt_set, WAYS, repetitions, run)
    busy = in_turn([Cell(prompt_set, BUSY)], WAYS, repetitions, run)
    speeds = {arm: [each.output_tokens_per_s for each in measured] for arm, measured in busy.items()}
    direct, routed = WAYS
    return RouterCost(
        ttft=added_latency(singles, WAYS, lambda answer: answer.ttft_s),
        itl=added_latency(singles, WAYS, lambda answer: answer.itl_s),
        speed_ratio=Blocks(speeds).ratio(routed, direct),
        num_at_once=BUSY.num_at_once,
        num_different=sum(
            num_different_answers([*measured[direct], *measured[routed]]) for measured in (singles, busy)
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        prompts, prompt_set = drawn_prompts(options, NUM_PROMPTS)
        check_chats(prompts, None)
        with running_server(options.url, options.recipe) as url:
            context = server_conditions("benchmarks.router_cost", command_line, options.recipe, url, prompts)
            with Workers.connect(url, BUSY.num_at_once, streaming=True) as workers:
                cost = measure_router_cost(prompt_set, options.repetitions, workers)
        document = {"max_tokens": MAX_TOKENS, **asdict(cost), "conditions": context}
        print(json.dumps(document))
        return EXIT_FAIL if cost.num_different else EXIT_PASS

    return run_program(work)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router_cost", description=__doc__)
    add_server_options(parser)
    parser.add_argument(
        "--repetitions", type=whole_number(2), default=8, help="repetitions of every prompt (%(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
