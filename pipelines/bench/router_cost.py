"""What ``router`` adds to asking ``generate`` itself.

``python -m pipelines.bench.router_cost --recipe demo-large`` asks both in turn, each prompt both ways: one
request at a time for the times to the first token and per token, then several at once for output tokens
per second. The last line of standard output is JSON. Exit codes: 0 measured; 1 a request failed or
answers differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from scipy.stats import quantile_test

from pipelines.bench.arms import ADAPTIVE, Arm
from pipelines.bench.blocks import CONFIDENCE, Blocks, Interval
from pipelines.bench.loads import ClosedLoop
from pipelines.bench.measuring import Measurement, num_different_answers, run_once
from pipelines.bench.plan import Cell
from pipelines.bench.prompt_sets import CODE, PromptSet, read_prompt_sets
from pipelines.client import Client, Generation
from pipelines.client.at_once import Workers
from pipelines.command_line import EXIT_FAIL, EXIT_INTERRUPTED, EXIT_PASS, add_server_options, whole_number
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError
from pipelines.running_server import engine_directories, running_server

DIRECT, ROUTED = ADAPTIVE, Arm("router")
BUSY = ClosedLoop(8)
NUM_PROMPTS = 32
MAX_TOKENS = 40

Heard = dict[Arm, list[Measurement]]
"""Both ways; entries of the same index are of the same requests, asked one after the other."""


@dataclass(frozen=True)
class Added:
    """A time of requests asked one by one, directly and through the router.

    Attributes:
        direct_ms: Median.
        routed_ms: Median.
        added_ms: Median of the differences, routed less direct. Its interval goes by the order of the
            differences, so it holds whatever their distribution is.
        num_pairs: Differences: requests that were asked both ways and have such a time.
    """

    direct_ms: float
    routed_ms: float
    added_ms: Interval
    num_pairs: int


@dataclass(frozen=True)
class RouterCost:
    """What the router adds.

    Attributes:
        ttft: To the time to the first token.
        itl: To the time per output token after the first.
        speed_ratio: Output tokens per second with it over those without, ``num_at_once`` requests at once.
        num_at_once: Of ``speed_ratio``.
        num_different: Answers that are not those that the same prompt got first.
    """

    ttft: Added
    itl: Added
    speed_ratio: Interval
    num_at_once: int
    num_different: int


def measure_router_cost(prompt_set: PromptSet, repetitions: int, workers: Workers) -> RouterCost:
    """Ask directly and through the router, in turn.

    Args:
        prompt_set: Asked whole in each repetition, after a first time that does not count: prompts and
            engines are warm then.
        repetitions: At least 2.
        workers: As many as ``BUSY`` needs.

    Raises:
        DraftproofError: A request failed.
    """
    one_by_one = [
        Cell(PromptSet(f"{prompt_set.name} {number}", (request,)), ClosedLoop(1))
        for number, request in enumerate(prompt_set.requests)
    ]
    _in_turn(one_by_one, 1, workers)
    singles = _in_turn(one_by_one, repetitions, workers)
    busy = _in_turn([Cell(prompt_set, BUSY)], repetitions, workers)
    speeds = {arm: [each.output_tokens_per_s for each in heard] for arm, heard in busy.items()}
    return RouterCost(
        ttft=_added(singles, lambda answer: answer.ttft_s),
        itl=_added(singles, lambda answer: answer.itl_s),
        speed_ratio=Blocks(speeds).ratio(ROUTED, DIRECT),
        num_at_once=BUSY.num_at_once,
        num_different=sum(
            num_different_answers([*heard[DIRECT], *heard[ROUTED]]) for heard in (singles, busy)
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parse(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    prompt_set = read_prompt_sets((CODE,), NUM_PROMPTS, 0.0, options.prompt_file)[CODE]
    try:
        with running_server(options.url, options.recipe) as url:
            with Client.connect(url) as client:
                context = conditions(
                    "pipelines.bench.router_cost",
                    command_line,
                    recipe=options.recipe,
                    triton_version=client.server_version(),
                    engines=engine_conditions(engine_directories(client)),
                )
            with Workers.connect(url, BUSY.num_at_once, streaming=True) as workers:
                cost = measure_router_cost(prompt_set, options.repetitions, workers)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAIL
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    document = {"max_tokens": MAX_TOKENS, **asdict(cost), "conditions": context}
    print(json.dumps(document))
    return EXIT_FAIL if cost.num_different else EXIT_PASS


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.bench.router_cost", description=__doc__)
    add_server_options(parser)
    parser.add_argument(
        "--repetitions", type=whole_number(2), default=8, help="of every prompt (%(default)s)"
    )
    return parser.parse_args(arguments)


def _in_turn(cells: Sequence[Cell], repetitions: int, workers: Workers) -> Heard:
    heard: Heard = {DIRECT: [], ROUTED: []}
    for repetition in range(repetitions):
        for number, cell in enumerate(cells):
            for arm in (DIRECT, ROUTED) if (repetition + number) % 2 else (ROUTED, DIRECT):
                heard[arm].append(run_once(cell, arm, MAX_TOKENS, workers, repetition))
    return heard


def _added(heard: Heard, time_s: Callable[[Generation], float | None]) -> Added:
    pairs_ms = [
        (1e3 * direct, 1e3 * routed)
        for one, other in zip(heard[DIRECT], heard[ROUTED], strict=True)
        if (direct := time_s(one.generations[0])) is not None
        and (routed := time_s(other.generations[0])) is not None
    ]
    differences = [routed - direct for direct, routed in pairs_ms]
    interval = quantile_test(differences, p=0.5).confidence_interval(CONFIDENCE)
    direct_ms, routed_ms, added_ms = map(statistics.median, (*zip(*pairs_ms, strict=True), differences))
    return Added(direct_ms, routed_ms, Interval(added_ms, interval.low, interval.high), len(pairs_ms))


if __name__ == "__main__":
    sys.exit(main())
