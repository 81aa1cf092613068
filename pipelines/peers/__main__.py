"""Measure our server beside other engines, with and without speculation.

``python -m pipelines.peers --recipe demo-large --concurrency 1,8``

Each engine answers the same prompts with the same weights on the same cores, in one run, in turn. The
result is written to ``results/<run id>.json`` too. Exit codes: 0 measured; 1 our server failed or its
answers differ; 2 wrong usage; 3 an engine could not be measured. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.client import Client
from pipelines.client.at_once import Workers
from pipelines.command_line import (
    EXIT_FAIL,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    whole_number,
    whole_numbers,
)
from pipelines.conditions import conditions, engine_conditions
from pipelines.errors import DraftproofError
from pipelines.peers.figures import figures_of
from pipelines.peers.models import PROMPT_FILES, PeerModels
from pipelines.peers.peers import OURS, OURS_ADAPTIVE, OURS_ALONE, PEERS, Arm, Peer
from pipelines.peers.report import as_document, conclusion, table
from pipelines.peers.runners import Runner, ServerRunner
from pipelines.peers.running_peers import RunningPeers, running_peers
from pipelines.peers.schedule import Measurement, Plan, Schedule, num_requests
from pipelines.running_server import engine_directories, running_server

RESULTS = Path(__file__).resolve().parents[2] / "results"
_METHOD = (
    "greedy, whole answers, no streams; our server over gRPC, the others called in their own process; "
    "prompts are in the caches of engines that have one (ours, genai, vllm), hf computes them each time"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        document = _compare(options, command_line)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        print(json.dumps({"error": str(error)}))
        return EXIT_FAIL
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
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
    plan = Plan(
        prompts={name: models.prompts(name, num_requests(most)) for name in options.prompt_sets},
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        repetitions=options.repetitions,
        most_at_once={peer.name: peer.most_at_once for peer in peers if peer.most_at_once is not None},
    )
    with (
        running_server(options.url, options.recipe) as url,
        running_peers(peers, models, most, options.timeout_s, _say) as running,
        Workers.connect(url, most, streaming=False) as workers,
    ):
        context = _conditions(url, options, command_line, peers, running)
        ours: dict[Arm, Runner] = {arm: ServerRunner(workers, arm.num_draft_tokens) for arm in _OUR_ARMS}
        schedule = Schedule(plan, {**ours, **running.runners}, _say_measurement)
        schedule.run()
    figures = figures_of(schedule.measurements)
    failures = {**running.failures, **{str(arm): text for arm, text in schedule.failures.items()}}
    print(table(figures))
    print("brackets: least..greatest repetition; differ: answers unlike the engine's own target alone;")
    print("unsteady: unlike the arm's own first repetition; as ours: tokens before the first unlike ours")
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
        "pipelines.peers",
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
    where = f"{entry.prompt_set}, {entry.num_at_once} at once, repetition {entry.repetition + 1}"
    _say(f"{where}, {entry.arm}: {rate:.1f} tokens/s")


def _names(known: Sequence[str]) -> Any:
    """Reader of an option such as ``code,mixed``."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return read


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.peers", description="Measure our server beside other engines."
    )
    peers, prompt_sets = tuple(peer.name for peer in PEERS), tuple(PROMPT_FILES)
    parser.add_argument(
        "--url", default="", help="running server, grpc://host:port or http://host:port (default: start one)"
    )
    parser.add_argument("--recipe", default="demo-large", help="recipe that is compared (%(default)s)")
    parser.add_argument(
        "--peers", type=_names(peers), default=peers, help=f"engines (default: {','.join(peers)})"
    )
    parser.add_argument(
        "--prompt-sets",
        type=_names(prompt_sets),
        default=prompt_sets,
        help=f"prompts (default: {','.join(prompt_sets)})",
    )
    parser.add_argument(
        "--concurrency", type=whole_numbers(1), default=(1, 8), help="requests at once (default: 1,8)"
    )
    parser.add_argument("--max-tokens", type=whole_number(2), default=128, help="per answer (%(default)s)")
    parser.add_argument("--repetitions", type=whole_number(1), default=3, help="of each arm (%(default)s)")
    parser.add_argument(
        "--timeout-s", type=float, default=1200.0, help="for one answer of an engine (%(default)s)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the result (results/)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
