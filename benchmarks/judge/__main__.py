"""Measure how often the canary's judge rolls good candidates back and finds bad ones.

``python -m benchmarks.judge --recipe demo`` reads the latest rollout of the recipe's server and simulates
rollouts from its requests: one series without a fault and one for each fault of the drills. 100 rollouts of
each take about a minute. The last line of standard output is JSON. Exit codes: 0 simulated; 1 there is no
rollout or it has too few requests; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judge.faults import DRILLS, NO_FAULT
from benchmarks.judge.report import as_document, as_text
from benchmarks.judge.simulate import Plan, simulate
from pipelines.bench.reporting.conditions import conditions
from pipelines.canary.controller.state import Store
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.run_files import state_file
from pipelines.command_line.options import whole_number
from pipelines.deploy.server import run_directory
from pipelines.errors import CanaryError
from pipelines.program import EXIT_PASS, run_program


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _simulate_and_print(options, given))


def _simulate_and_print(options: argparse.Namespace, given: list[str]) -> int:
    record = _read(options.state or state_file(run_directory(options.recipe)))
    requests, left_out = usable(record.requests)
    plan = Plan(options.runs, options.max_pairs)
    simulations = [
        simulate(requests, fault, record.limits, record.slo, plan) for fault in (NO_FAULT, *DRILLS)
    ]
    print(as_text(simulations))
    if left_out:
        print(f"Without load band {', '.join(left_out)}: the control answered no request there.")
    document = {
        "canary_id": record.canary_id,
        "load_bands_left_out": left_out,
        "simulations": [as_document(each) for each in simulations],
        "conditions": conditions("benchmarks.judge", given, recipe=record.recipe_stable),
    }
    print(json.dumps(document))
    return EXIT_PASS


def usable(requests: Sequence[ObservedRequest]) -> tuple[list[ObservedRequest], list[str]]:
    """Choose the requests of a rollout that a simulation can draw from.

    Returns:
        Requests of the stable pair and of the control, without replays, in the load bands in which both
        answered; and the other load bands of the stable pair.

    Raises:
        CanaryError: Both never answered in the same load band.
    """
    recorded = [each for each in requests if each.arm in ("stable", "control") and not each.is_replay]
    bands = {arm: {each.band for each in recorded if each.arm == arm} for arm in ("stable", "control")}
    both = bands["stable"] & bands["control"]
    if not both:
        raise CanaryError(
            "recorded requests are not enough to simulate a rollout",
            values=f"load bands of the stable pair: {', '.join(sorted(bands['stable'])) or 'none'}; "
            f"of the control: {', '.join(sorted(bands['control'])) or 'none'}",
            limit="requests of both in one load band",
            remedy="give the control some weight during the rollout",
        )
    return [each for each in recorded if each.band in both], sorted(bands["stable"] - both)


def _read(state: Path) -> RolloutRecord:
    store = Store.existing(state)
    try:
        return store.record()
    finally:
        store.close()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="recipe of the pair in service (%(default)s)")
    parser.add_argument("--state", type=Path, help="state file (default: in the recipe's run directory)")
    parser.add_argument("--runs", type=whole_number(1), default=100, help="rollouts per fault (%(default)s)")
    parser.add_argument(
        "--max-pairs",
        type=whole_number(1),
        default=4000,
        help="pairs of requests after which a rollout ends without a verdict (%(default)s)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
