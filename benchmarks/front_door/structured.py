"""Measure what structured output costs, and what speculation gains with it.

``python -m benchmarks.front_door.structured --recipe demo-large`` sends in turn requests without a guide and
the same with a regular expression that every text matches, so that answers and acceptance are equal and only
masks differ; then requests with a JSON schema whose keys are long and fixed, to the pair and to the target
alone. The last line of standard output is JSON. Exit codes: 0 success; 1 a request failed, or pair and
target alone differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.one_server import drawn_prompts, server_conditions
from pipelines.bench.arms import ADAPTIVE, TARGET_ALONE, Arm
from pipelines.bench.loads import ClosedLoop
from pipelines.bench.measuring import Measurement, run_once
from pipelines.bench.plan import Cell
from pipelines.bench.prompt_sets import PromptSet
from pipelines.bench.report.blocks import Blocks, Interval
from pipelines.client import CompletionRequest
from pipelines.client.workers import Workers
from pipelines.command_line.options import whole_number
from pipelines.command_line.running_server import running_server
from pipelines.command_line.server_options import add_server_options
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program

CONCURRENCY = (1, 8)
FREE_TOKENS = 40
SCHEMA_TOKENS = 200
NUM_PROMPTS = 16
EVERY_TEXT = ("regex", r"(.|\n)*")
KEYS = (
    "identification_number_of_the_customer",
    "date_on_which_the_order_was_confirmed",
    "total_amount_including_all_taxes_in_cents",
    "whether_the_delivery_address_was_verified",
    "number_of_previous_orders_of_this_customer",
)
SCHEMA = {
    "type": "object",
    "properties": {key: {"type": "integer", "minimum": 0, "maximum": 9999} for key in KEYS},
    "required": list(KEYS),
    "additionalProperties": False,
}

Way = tuple[str, Arm]
"""Name of the prompt set and arm."""

FREE: Way = ("free", ADAPTIVE)
GUIDED: Way = ("every text", ADAPTIVE)
SCHEMA_BY_PAIR: Way = ("schema", ADAPTIVE)
SCHEMA_ALONE: Way = ("schema", TARGET_ALONE)


@dataclass(frozen=True)
class Compared:
    """The same requests in two ways under one load.

    Attributes:
        num_at_once: Concurrent requests.
        speed_ratio: Output tokens per second of the first way divided by those of the second.
        acceptance_rates: Accepted over drafted tokens, each way; None without drafts.
        num_different: Answers whose tokens are not the same in both ways.
    """

    num_at_once: int
    speed_ratio: Interval
    acceptance_rates: tuple[float | None, float | None]
    num_different: int


@dataclass(frozen=True)
class StructuredCost:
    """Figures of structured output.

    Attributes:
        guided_beside_free: A guide that every text matches, beside no guide.
        pair_beside_target: A JSON schema answered by the pair, beside the target alone.
    """

    guided_beside_free: tuple[Compared, ...]
    pair_beside_target: tuple[Compared, ...]


def measure(requests: Sequence[CompletionRequest], repetitions: int, workers: Workers) -> StructuredCost:
    """Send requests in all ways, in turn.

    Args:
        requests: Requests without a guide.
        repetitions: Number of repetitions, at least 2.
        workers: Clients, as many as the largest of ``CONCURRENCY``.

    Raises:
        DraftproofError: A request failed.
    """
    guides = {"free": None, "every text": EVERY_TEXT, "schema": ("json_schema", json.dumps(SCHEMA))}
    sets = {
        name: PromptSet(name, tuple(replace(each, guide=guide) for each in requests))
        for name, guide in guides.items()
    }

    def compare(one: Way, other: Way, max_tokens: int, num_at_once: int) -> Compared:
        measured: dict[Way, list[Measurement]] = {one: [], other: []}
        load = ClosedLoop(num_at_once)
        for repetition in range(-1, repetitions):  # the first one warms up
            for name, arm in (one, other) if repetition % 2 else (other, one):
                found = run_once(Cell(sets[name], load), arm, max_tokens, workers, repetition)
                if repetition >= 0:
                    measured[name, arm].append(found)
        return _compared(num_at_once, one, other, measured)

    return StructuredCost(
        tuple(compare(GUIDED, FREE, FREE_TOKENS, number) for number in CONCURRENCY),
        tuple(compare(SCHEMA_BY_PAIR, SCHEMA_ALONE, SCHEMA_TOKENS, number) for number in CONCURRENCY),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        prompts, prompt_set = drawn_prompts(options, NUM_PROMPTS)
        with running_server(options.url, options.recipe) as url:
            context = server_conditions(
                "benchmarks.front_door.structured", command_line, options.recipe, url, prompts
            )
            with Workers.connect(url, max(CONCURRENCY), streaming=True) as workers:
                cost = measure(prompt_set.requests, options.repetitions, workers)
        document = {
            "free_tokens": FREE_TOKENS,
            "schema_tokens": SCHEMA_TOKENS,
            "keys": KEYS,
            **asdict(cost),
            "conditions": context,
        }
        print(json.dumps(document))
        # A text that is no UTF-8 matches no guide, so the other answers may differ.
        return EXIT_FAIL if any(each.num_different for each in cost.pair_beside_target) else EXIT_PASS

    return run_program(work)


def _compared(num_at_once: int, one: Way, other: Way, measured: Mapping[Way, list[Measurement]]) -> Compared:
    speeds = {way: [each.output_tokens_per_s for each in found] for way, found in measured.items()}
    return Compared(
        num_at_once,
        Blocks(speeds).ratio(one, other),
        (_acceptance(measured[one]), _acceptance(measured[other])),
        sum(
            first.output_ids != second.output_ids
            for mine, others in zip(measured[one], measured[other], strict=True)
            for first, second in zip(mine.generations, others.generations, strict=True)
        ),
    )


def _acceptance(measured: Sequence[Measurement]) -> float | None:
    answers = [answer for each in measured for answer in each.generations]
    num_drafted = sum(answer.total_draft_tokens for answer in answers)
    return (
        sum(answer.total_accepted_draft_tokens for answer in answers) / num_drafted if num_drafted else None
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.front_door.structured", description=__doc__)
    add_server_options(parser)
    parser.set_defaults(recipe="demo-large")
    parser.add_argument(
        "--repetitions", type=whole_number(2), default=8, help="repetitions of every prompt (%(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
