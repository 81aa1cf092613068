"""Compare our server with other engines, with and without speculation.

``python -m benchmarks.peers --recipe demo-large --concurrency 1,8``

All engines answer the same prompts with the same weights on the same cores, alternately in one run. The
result is also written to ``results/<run id>.json``. Exit codes: 0 success; 1 our server failed or its answers
differ; 2 wrong usage; 3 an engine could not be measured. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.figures import figures_of
from benchmarks.peers.models import PeerModels
from benchmarks.peers.peers import OURS, OURS_ADAPTIVE, OURS_ALONE, PEERS, Arm, Peer
from benchmarks.peers.report import as_document, conclusion, table
from benchmarks.peers.runners import Runner, ServerRunner
from benchmarks.peers.running_peers import RunningPeers, running_peers
from benchmarks.peers.schedule import Measurement, Plan, Schedule, num_requests
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client
from pipelines.client.workers import Workers
from pipelines.command_line.chat_prompts import check_chats
from pipelines.command_line.given_prompts import add_prompts_option
from pipelines.command_line.options import (
    whole_number,
    whole_numbers,
)
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories, running_server
from pipelines.program import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, run_program

RESULTS = Path(__file__).resolve().parents[2] / "results"
_METHOD = (
    "greedy, not streamed; our server over gRPC, the others in their own process; prompts are in the prefix "
    "caches of engines that have one; hf has none"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.context is not None and (options.prompts is not None or options.prompt_sets is not None):
        parser.error("--context stands instead of --prompts and --prompt-sets")
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _compare_and_print(options, command_line), result={})


def _compare_and_print(options: argparse.Namespace, command_line: list[str]) -> int:
    document = _compare(options, command_line)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{document['run_id']}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
    print(json.dumps(document))
    if any(arm["num_different"] for arm in document["arms"] if arm["engine"] == OURS):
        return EXIT_FAIL
    return EXIT_INCONCLUSIVE if document["not_measured"] else EXIT_PASS


def _compare(options: argparse.Namespace, command_line: list[str]) -> dict[str, Any]:
    models = PeerModels.of(options.recipe)
    most = max(options.concurrency)
    peers = [peer for peer in PEERS if peer.name in options.peers]
    count = num_requests(most)
    prompts = _prompts(options, count) if options.context is None else models.code(count, options.context)
    plan = Plan(
        prompts={name: models.tokenized(of_set) for name, of_set in prompts.sets.items()},
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        repetitions=options.repetitions,
        max_concurrency={
            peer.name: peer.max_concurrency for peer in peers if peer.max_concurrency is not None
        },
    )
    with (
        running_server(options.url, options.recipe) as url,
        running_peers(peers, models, most, options.timeout_s, _say) as running,
        Workers.connect(url, most, streaming=False) as workers,
    ):
        context = _conditions(url, options, command_line, peers, running)
        context["prompts"] = prompts.document()
        ours: dict[Arm, Runner] = {arm: ServerRunner(workers, arm.num_draft_tokens) for arm in _OUR_ARMS}
        schedule = Schedule(plan, {**ours, **running.runners}, _say_measurement)
        schedule.run()
    figures = figures_of(schedule.measurements)
    failures = {**running.failures, **{str(arm): text for arm, text in schedule.failures.items()}}
    print(table(figures))
    print("brackets: lowest..highest repetition; differ: answers that differ from the engine's target alone;")
    print("unsteady: from the arm's first repetition; as ours: share of tokens before the first that differs")
    print(_METHOD)
    print(conclusion(figures, failures))
    stamp = context["date"].replace(":", "").replace("-", "")
    return {
        "run_id": f"peers-{Path(options.recipe).stem}-{stamp}",
        **as_document(figures, failures),
        "max_tokens": plan.max_tokens,
        "repetitions": plan.repetitions,
        "conditions": context,
    }


def _prompts(options: argparse.Namespace, count: int) -> Prompts:
    """Return ``count`` prompts of each set; raises InvalidRequestError if there are fewer."""
    prompts = choose_prompts(options.prompts, options.recipe).for_judging()
    check_chats(prompts, None)
    names = options.prompt_sets or tuple(prompts.sets)
    sets = {name: replace(prompts, sets={name: prompts.sets.get(name, ())}) for name in names}
    drawn = {name: of_set.draw(count, least=count).sets[name] for name, of_set in sets.items()}
    return replace(prompts, sets=drawn)


_OUR_ARMS = (OURS_ALONE, OURS_ADAPTIVE)


def _conditions(
    url: str,
    options: argparse.Namespace,
    command_line: list[str],
    peers: Sequence[Peer],
    running: RunningPeers,
) -> dict[str, Any]:
    with Client.connect(url) as client:
        engines = engine_conditions(engine_directories(client))
        triton = client.server_version()
    described = {
        peer.name: {
            "title": peer.title,
            "draft_lengths": peer.draft_lengths,
            "versions": dict(running.loaded[peer.name].versions),
            "notes": running.loaded[peer.name].notes,
        }
        for peer in peers
        if peer.name in running.loaded
    }
    return conditions(
        "benchmarks.peers",
        command_line,
        recipe=options.recipe,
        triton_version=triton,
        engines=engines,
        peers=described,
        method=_METHOD,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _say_measurement(entry: Measurement) -> None:
    rate = entry.num_output_tokens / entry.wall_s
    where = f"{entry.prompt_set}, {entry.num_at_once} concurrent, repetition {entry.repetition + 1}"
    _say(f"{where}, {entry.arm}: {rate:.1f} tokens/s")


def _names(known: Sequence[str]) -> Any:
    """Return a parser for an option such as ``code,mixed``."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return read


def _set_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of different names")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="Compare our server with other engines."
    )
    peers = tuple(peer.name for peer in PEERS)
    parser.add_argument(
        "--url", default="", help="running server, grpc://host:port or http://host:port (default: start one)"
    )
    parser.add_argument("--recipe", default="demo-large", help="recipe to compare (%(default)s)")
    parser.add_argument(
        "--peers",
        type=_names(peers),
        default=peers,
        help=f"engines to compare with (default: {','.join(peers)})",
    )
    add_prompts_option(parser)
    parser.add_argument(
        "--prompt-sets",
        type=_set_names,
        help="names of files of the prompts (default: all)",
    )
    parser.add_argument(
        "--context",
        type=whole_number(1),
        help="instead of prompts: held-out code of this many tokens each",
    )
    parser.add_argument(
        "--concurrency", type=whole_numbers(1), default=(1, 8), help="concurrent requests (default: 1,8)"
    )
    parser.add_argument(
        "--max-tokens", type=whole_number(2), default=128, help="tokens per answer (%(default)s)"
    )
    parser.add_argument(
        "--repetitions", type=whole_number(1), default=3, help="repetitions of each arm (%(default)s)"
    )
    parser.add_argument(
        "--timeout-s", type=float, default=1200.0, help="time limit for one answer of an engine (%(default)s)"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder for the result (default: results/)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
