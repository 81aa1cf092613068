"""Rolls a new pair out: ``python -m pipelines.canary start --recipe demo --candidate <recipe>``.

``status``, ``pause``, ``resume``, ``promote``, ``abort``, ``verdict``, ``report`` and ``serve`` speak with
the rollout through its state file; orders are taken at the next look. Exit codes of ``start`` and
``verdict``: 0 pass, 1 fail, 3 inconclusive; of all: 1 refused, 2 wrong usage. The last line of standard
output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipelines.canary.analysis.simulation import Plan as Simulated
from pipelines.canary.gates.http import GateServer
from pipelines.canary.html_page import as_html
from pipelines.canary.live_view import LiveView, record_lines
from pipelines.canary.orders import ORDERS, give_order
from pipelines.canary.plan import DEFAULT
from pipelines.canary.record import RolloutRecord, judgement
from pipelines.canary.report import as_document, report_of
from pipelines.canary.start import start, state_file
from pipelines.canary.state import Store
from pipelines.command_line import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_PASS
from pipelines.conditions import conditions
from pipelines.deploy.server import run_directory
from pipelines.errors import DraftproofError
from pipelines.running_server import stopped_by_signals
from pipelines.whole_file import write_whole

_SIMULATED = Simulated(num_runs=100, max_pairs=4000)  # a minute
_EXIT = {"pass": EXIT_PASS, "fail": EXIT_FAIL, "inconclusive": EXIT_INCONCLUSIVE}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parse(arguments)
    try:
        return int(options.command(options))
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        print(json.dumps({"error": str(error)}))
        return EXIT_FAIL
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.canary", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="start|status|pause|resume|promote|abort|...")
    named = [
        ("start", _start, "begin a rollout, or go on with the one whose controller ended"),
        ("status", _status, "say where it stands"),
        ("verdict", _verdict, "say what it amounts to, by exit code too"),
        ("report", _report, "write its page, and the same as JSON"),
        ("serve", _serve, "answer Argo Rollouts, Flagger and Kayenta over HTTP"),
        *((order, _order, text) for order, text in ORDERS.items()),
    ]
    for name, command, text in named:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command, order=name)
        sub.add_argument("--recipe", default="demo", help="recipe of the pair in service (%(default)s)")
        if name != "start":
            sub.add_argument("--state", type=Path, help="state file (default: in the recipe's run directory)")
        else:
            sub.add_argument("--candidate", required=True, help="recipe of the new pair")
            sub.add_argument(
                "--plan", type=Path, default=DEFAULT, help="weights, times, limits (%(default)s)"
            )
            sub.add_argument(
                "--host", default="", help="of a server in a container (default: the one started here)"
            )
        if name == "report":
            sub.add_argument("--results", type=Path, default=Path("results"), help="folder (%(default)s)")
        if name == "serve":
            sub.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
            sub.add_argument("--port", type=int, default=8003, help="port (%(default)s)")
    return parser.parse_args(arguments)


def _state(options: argparse.Namespace) -> Path:
    given: Path | None = options.state
    return given or state_file(run_directory(options.recipe))


def _read(options: argparse.Namespace) -> RolloutRecord:
    store = Store.existing(_state(options))
    try:
        return store.record()
    finally:
        store.close()


def _start(options: argparse.Namespace) -> int:
    directory = run_directory(options.recipe)
    print(f"{options.candidate}: built and measured first, if it is not yet", file=sys.stderr)
    try:
        with stopped_by_signals():
            record = start(
                directory, options.candidate, options.plan, LiveView(sys.stderr).show, host=options.host
            )
    except KeyboardInterrupt:
        print("\nthe stable pair has all requests again; the same command goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    return _print(record)


def _status(options: argparse.Namespace) -> int:
    _print(_read(options))
    return EXIT_PASS


def _verdict(options: argparse.Namespace) -> int:
    return _print(_read(options))


def _print(record: RolloutRecord) -> int:
    judged = judgement(record)
    print("\n".join(record_lines(record, judged)))
    print(json.dumps(asdict(judged)))
    return _EXIT[judged.verdict]


def _order(options: argparse.Namespace) -> int:
    print(give_order(_state(options), options.order))
    return EXIT_PASS


def _report(options: argparse.Namespace) -> int:
    record = _read(options)
    report = report_of(record, _SIMULATED)
    context = conditions("pipelines.canary", sys.argv[1:], recipe=record.recipe_candidate)
    page = options.results / f"canary-{record.canary_id}.html"
    document = as_document(report, context)
    write_whole(page, as_html(report, context))
    write_whole(page.with_suffix(".json"), json.dumps(document, indent=1) + "\n")
    print(f"the page is {page}, the same as JSON beside it")
    print(json.dumps(document))
    return EXIT_PASS


def _serve(options: argparse.Namespace) -> int:
    with GateServer(lambda: _read(options), (options.host, options.port)) as server:
        print(json.dumps({"http": f"http://{options.host}:{server.server_port}"}), flush=True)
        with stopped_by_signals():
            server.serve_forever()
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
