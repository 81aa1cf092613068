"""Roll out a new pair: ``draftproof canary start --recipe demo --candidate <recipe>``.

A second server is started for it beside the one in service, on the same machine.
``status``, ``pause``, ``resume``, ``promote``, ``abort``, ``verdict``, ``report`` and ``serve`` use the state
file of the rollout; the controller carries orders out in its next cycle. Exit codes of ``start`` and
``verdict``: 0 pass, 1 fail, 3 inconclusive; of all commands: 1 refused, 2 wrong usage. The last line of
standard output is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions
from pipelines.canary.controller.orders import ORDERS, give_order
from pipelines.canary.controller.plan import DEFAULT
from pipelines.canary.controller.state import Store
from pipelines.canary.gates import serve
from pipelines.canary.report.record import RolloutRecord, judgement
from pipelines.canary.report.rollout_report import report_of
from pipelines.canary.report.text import report_lines, show_cycle, status_lines
from pipelines.canary.run_files import state_file
from pipelines.canary.start import start
from pipelines.deploy.server import run_directory
from pipelines.program import (
    EXIT_CODES,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    run_program,
    stopped_by_signals,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parse(arguments)
    options.given = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: int(options.command(options)), result={})


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="draftproof canary", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="start|status|pause|resume|promote|abort|...")
    named = [
        ("start", _start, "start a rollout, or resume one whose controller has ended"),
        ("status", _show, "show the current phase and its reasons"),
        ("verdict", _show, "show the verdict, also as exit code"),
        ("report", _report, "print the report, and write it as JSON"),
        ("serve", _serve, "serve the verdict to Argo Rollouts and Flagger over HTTP"),
        *((order, _order, text) for order, text in ORDERS.items()),
    ]
    for name, command, text in named:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command, order=name)
        sub.add_argument("--recipe", default="demo", help="recipe of the pair in service (%(default)s)")
        if name != "start":
            sub.add_argument("--state", type=Path, help="state file (default: in the recipe's run directory)")
        if name == "start":
            sub.add_argument(
                "--public-key",
                type=lambda word: Path(word) if word else None,
                metavar="FILE",
                help="PEM file of the Ed25519 public key that must have signed the package (default: none)",
            )
            sub.add_argument(
                "--candidate", required=True, help="recipe of the new pair, or directory of its package"
            )
            sub.add_argument(
                "--plan",
                type=Path,
                default=DEFAULT,
                help=f"plan with weights, times and limits (default: {DEFAULT.name})",
            )
        if name == "report":
            sub.add_argument(
                "--results", type=Path, default=Path("results"), help="folder for the report (%(default)s)"
            )
        if name == "serve":
            sub.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
            sub.add_argument("--port", type=int, default=8003, help="port (%(default)s)")
            sub.add_argument(
                "--allow-host",
                action="append",
                default=[],
                metavar="NAME",
                help="name by which it is asked besides its addresses, such as a service's; may be repeated",
            )
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
    print(f"{options.candidate}: building and measuring first if needed", file=sys.stderr)
    try:
        with stopped_by_signals():
            record = start(
                run_directory(options.recipe),
                options.candidate,
                options.plan,
                show_cycle,
                public_key=options.public_key,
            )
    except KeyboardInterrupt:
        print(
            "\nthe stable pair gets all requests again; the same command resumes the rollout", file=sys.stderr
        )
        return EXIT_INTERRUPTED
    return _print(record)


def _show(options: argparse.Namespace) -> int:
    code = _print(_read(options))
    return code if options.order == "verdict" else EXIT_PASS


def _print(record: RolloutRecord) -> int:
    judged = judgement(record)
    print("\n".join(status_lines(record, judged)))
    print(json.dumps(asdict(judged)))
    return EXIT_CODES[judged.verdict]


def _order(options: argparse.Namespace) -> int:
    print(give_order(_state(options), options.order))
    return EXIT_PASS


def _report(options: argparse.Namespace) -> int:
    record = _read(options)
    report = report_of(
        record, conditions("pipelines.canary", options.given, recipe=record.rollout.recipe_candidate)
    )
    path = options.results / f"canary-{record.rollout.canary_id}.json"
    write_whole(path, json.dumps(report, indent=1) + "\n")
    for line in (*status_lines(record, judgement(record)), *report_lines(report), f"wrote {path}"):
        print(line)
    print(json.dumps(report))
    return EXIT_PASS


def _serve(options: argparse.Namespace) -> int:
    def listening(port: int) -> None:
        print(json.dumps({"http": f"http://{options.host}:{port}"}), flush=True)

    with stopped_by_signals():
        asyncio.run(serve(lambda: _read(options), options.host, options.port, listening, options.allow_host))
    return EXIT_PASS


if __name__ == "__main__":
    sys.exit(main())
