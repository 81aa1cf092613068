"""Compare our server with other engines, with and without speculation.

``python -m benchmarks.peers --recipe demo-large --concurrency 1,8``

All engines answer the same prompts with the same weights on the same cores, in turn in one run. Exit codes:
0 success; 1 our server failed or its answers differ; 2 wrong usage; 3 an engine could not be measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from benchmarks.harness import Result, parser_of, run_benchmark, say, server_conditions
from benchmarks.peers.figures import figures_of, first_token_table, table
from benchmarks.peers.measuring import Measurement, Plan, Runner, Schedule, ServerRunner, num_requests
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import OURS, PEERS, Arm
from benchmarks.peers.running_peers import running_peers
from pipelines.bench.workers import Workers
from pipelines.command_line.chat_prompts import check_chats
from pipelines.command_line.options import whole_number, whole_numbers
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import running_server
from pipelines.program import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS

_TIMEOUT_S = 1200.0  # for one answer of an engine
_METHOD = (
    "greedy, not streamed; our server over gRPC, the others in their own process; except for first tokens, "
    "prompts are in the prefix caches of all engines"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_benchmark(_parser(), _compare, arguments)


def _compare(options: argparse.Namespace, command_line: list[str]) -> Result:
    models = PeerModels.of(options.recipe)
    most = max(options.concurrency)
    peers = [
        peer
        for peer in PEERS
        if (peer.name in options.peers if options.peers else models.has_weights_for(peer))
    ]
    prompts = _prompts(options, num_requests(most))
    plan = Plan(
        prompts={name: models.tokenized(of_set) for name, of_set in prompts.sets.items()},
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        repetitions=options.repetitions,
    )
    with ExitStack() as stack:
        ours: dict[Arm, Runner] = {}
        beside = [(options.beside, options.beside)] if options.beside else []
        for engine, recipe in [*beside, (OURS, options.recipe)]:
            url = stack.enter_context(running_server("", recipe))
            workers = stack.enter_context(Workers.connect(url, most, streaming=False))
            ours |= {Arm(engine, length): ServerRunner(workers, length) for length in (0, None)}
        running = stack.enter_context(running_peers(peers, models, most, _TIMEOUT_S, say))
        loaded = {peer: running.loaded[peer.name] for peer in peers if peer.name in running.loaded}
        described = {peer.name: {"title": peer.title, **asdict(each)} for peer, each in loaded.items()}
        about = server_conditions(
            *("benchmarks.peers", command_line, options.recipe, url, prompts),
            peers=described,
            method=_METHOD,
        )
        schedule = Schedule(plan, {**ours, **running.runners}, _say_measurement)
        schedule.run()
    figures = figures_of(schedule.measurements)
    failures = {**running.failures, **{str(arm): text for arm, text in schedule.failures.items()}}
    titles = {OURS: "Draftproof, through Triton"} | {peer.name: peer.title for peer in loaded}
    if options.beside:
        titles[options.beside] = f"Draftproof, recipe {options.beside}"
    lines = [
        table(figures, titles),
        "",
        first_token_table(schedule.first_token_s, titles),
        "",
        "Medians of output tokens/s: target alone -> speculating, at the engine's best draft length. Bold: "
        "how many times as fast Draftproof is as the faster of both (least to greatest repetition). "
        f"{plan.repetitions} repetitions in turn, at most {plan.max_tokens} tokens; {_METHOD}.",
        *(f"Not measured: {name}: {reason}" for name, reason in failures.items()),
    ]
    document = {
        "arms": [
            {
                **asdict(entry),
                "arm": str(entry.arm),
                "engine": entry.arm.engine,
                "num_draft_tokens": entry.arm.num_draft_tokens,
            }
            for entry in figures
        ],
        "first_token_s": [
            {"arm": str(arm), "prompt_set": prompt_set, "seconds": seconds}
            for (arm, prompt_set), seconds in schedule.first_token_s.items()
        ],
        "not_measured": failures,
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "conditions": about,
    }
    is_wrong = any(entry.num_different for entry in figures if entry.arm in ours)
    exit_code = EXIT_FAIL if is_wrong else EXIT_INCONCLUSIVE if failures else EXIT_PASS
    return Result("\n".join(lines), document, exit_code)


def _prompts(options: argparse.Namespace, count: int) -> Prompts:
    """Return ``count`` prompts of each set; raises InvalidRequestError if there are fewer."""
    prompts = choose_prompts(options.prompts, options.recipe)
    check_chats(prompts, None)
    names = options.prompt_sets or tuple(prompts.sets)
    sets = {name: replace(prompts, sets={name: prompts.sets.get(name, ())}) for name in names}
    drawn = {name: of_set.draw(count, least=count).sets[name] for name, of_set in sets.items()}
    return replace(prompts, sets=drawn)


def _say_measurement(entry: Measurement) -> None:
    rate = entry.num_output_tokens / entry.wall_s
    where = f"{entry.prompt_set}, {entry.num_at_once} concurrent, repetition {entry.repetition + 1}"
    say(f"{where}, {entry.arm}: {rate:.1f} tokens/s")


def _names(known: Sequence[str] = ()) -> Any:
    """Return a parser of options such as ``code,mixed``, names of ``known`` if that is given."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not all(names) or len(set(names)) < len(names) or (known and set(names) - set(known)):
            allowed = f"names of {', '.join(known)}" if known else "names"
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of different {allowed}")
        return names

    return read


def _parser() -> argparse.ArgumentParser:
    peers = tuple(peer.name for peer in PEERS)
    parser = parser_of("benchmarks.peers", "Compare our server with other engines.", "demo-large")
    parser.add_argument("--beside", help="another recipe of ours with the same target, measured in turn too")
    parser.add_argument(
        "--peers", type=_names(peers), help=f"of {','.join(peers)} (default: those that read the weights)"
    )
    parser.add_argument("--prompt-sets", type=_names(), help="names of files of the prompts (default: all)")
    parser.add_argument("--concurrency", type=whole_numbers(1), default=(1, 8), help="default: 1,8")
    parser.add_argument("--max-tokens", type=whole_number(2), default=128, help="per answer (%(default)s)")
    parser.add_argument("--repetitions", type=whole_number(1), default=3, help="of each arm (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
