"""Command line: ``python -m pipelines.deploy serve|ready|stop|draft-length|doctor --recipe demo``.

Containers run ``run``, and ``mpirun`` in them ``rank``: they become the server instead of starting one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from pipelines.deploy.doctor import examine, print_findings
from pipelines.deploy.draft_length import ADAPTIVE, set_draft_length
from pipelines.deploy.endpoint import EXIT_TIMEOUT_S, Endpoint
from pipelines.deploy.launch import RUNTIMES, Launch
from pipelines.deploy.nvidia_triton import RANK_VARIABLE
from pipelines.deploy.own_directory import fill, have_alone
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, find_server, run_directory
from pipelines.deploy.server_command import ServerCommand, foreground_command, rank_command
from pipelines.deploy.triton_install import REPOSITORY_ROOT
from pipelines.errors import DraftproofError, ServerStartError


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if it did what its name says, 1 if not, 2 for wrong usage."""
    options = _parse(arguments)
    try:
        return int(options.command(options))
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pipelines.deploy", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="serve|ready|stop|draft-length|doctor|run|rank")
    for name, command, text in (
        ("serve", _serve, "start the server of a recipe and wait until it is ready"),
        ("ready", _ready, "wait until the server is ready"),
        ("stop", _stop, "stop the server"),
        ("draft-length", _draft_length, "set the draft length, of a server that runs too"),
        ("doctor", _doctor, "say what this machine has and lacks"),
        ("run", _run, "be the server of a run directory, in the foreground: what a container runs"),
        ("rank", _rank, "be one rank of that server: what mpirun runs"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        if name in ("run", "rank"):
            sub.add_argument("directory", type=Path, help="run directory with a rendered repository")
            sub.add_argument("--address", default=HOST, help="address to listen on (%(default)s)")
            sub.add_argument(
                "--exit-timeout-s",
                type=int,
                default=EXIT_TIMEOUT_S,
                help="for requests in flight, at the end",
            )
        elif name != "doctor":
            sub.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
        if name == "run":
            sub.add_argument(
                "--rendered",
                type=Path,
                help="run directory as 'make repository' left it, to begin from (default: it is this one)",
            )
        if name == "serve":
            sub.add_argument(
                "--runtime",
                choices=("", *RUNTIMES),
                default="",
                help="refuse a repository of another one (default: serve what is rendered)",
            )
        if name in ("serve", "doctor", "run", "rank"):
            for port in ("http", "grpc", "metrics"):
                variable = f"DRAFTPROOF_{port.upper()}_PORT"
                sub.add_argument(f"--{port}-port", type=int, help=f"default: ${variable}, or the usual one")
        if name == "draft-length":
            sub.add_argument(
                "--num-draft-tokens", default=ADAPTIVE, help="a number, 0 for none, or adaptive (%(default)s)"
            )
        if name in ("serve", "ready"):
            sub.add_argument("--timeout-s", type=float, help="seconds to wait (default: by runtime)")
    return parser.parse_args(arguments)


def _ports(options: argparse.Namespace) -> Ports:
    default = Ports.from_environment()
    chosen = {
        name: getattr(options, f"{name}_port") for name in asdict(default) if getattr(options, f"{name}_port")
    }
    return Ports(**{**asdict(default), **chosen})


def _serve(options: argparse.Namespace) -> int:
    directory = run_directory(options.recipe)
    _check_runtime(directory, options.runtime)
    server = Server.start(directory, _ports(options), report=lambda line: print(line, flush=True))
    print(f"starting process {server.process.pid}; log {server.log}", flush=True)
    try:
        seconds = server.wait_ready(options.timeout_s)
    except BaseException:  # not ready, or interrupted: leave nothing behind
        server.stop()
        raise
    print(f"ready after {seconds:.1f} s; stop it with 'make stop'")
    _print_addresses(server)
    return 0


def _ready(options: argparse.Namespace) -> int:
    server = find_server(run_directory(options.recipe))
    print(f"ready after {server.wait_ready(options.timeout_s):.1f} s")
    _print_addresses(server)
    return 0


def _stop(options: argparse.Namespace) -> int:
    directory = run_directory(options.recipe)
    server = Server.running(directory)
    if server is None:
        Server.clear(directory)
        print("no server of this recipe runs")
        return 0
    print("stopped" if server.stop() else "killed: it did not end in time")
    return 0


def _draft_length(options: argparse.Namespace) -> int:
    path = set_draft_length(run_directory(options.recipe), options.num_draft_tokens)
    print(f"draft length of requests that do not say: {options.num_draft_tokens} ({path})")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    return print_findings(examine(_ports(options)))


def _run(options: argparse.Namespace) -> int:
    directory = options.directory.resolve()
    endpoint = Endpoint(_ports(options), options.address, options.exit_timeout_s)
    have_alone(directory)
    if options.rendered is not None and fill(directory, options.rendered):
        print(f"{directory} begins from {options.rendered}", flush=True)
    return _become(foreground_command(directory, endpoint))


def _rank(options: argparse.Namespace) -> int:
    text = os.environ.get(RANK_VARIABLE, "")
    if not text.isdecimal():
        raise ServerStartError(
            "the rank of this process is not known",
            values=f"{RANK_VARIABLE}={text!r}",
            limit="a process that Open MPI's mpirun has started",
            remedy="use 'python -m pipelines.deploy run', which starts mpirun",
        )
    endpoint = Endpoint(_ports(options), options.address, options.exit_timeout_s)
    return _become(rank_command(options.directory.resolve(), endpoint, int(text)))


def _become(command: ServerCommand) -> int:
    """Replace this process, so that signals reach the server and its exit code is ours."""
    os.chdir(REPOSITORY_ROOT)  # Triton's Python models are imported from there
    os.execve(command.arguments[0], command.arguments, command.environment)


def _check_runtime(directory: Path, wanted: str) -> None:
    rendered = Launch.read(directory).runtime
    if wanted not in ("", rendered):
        raise ServerStartError(
            "the rendered repository is of another runtime",
            values=f"{directory / 'model_repository'}: {rendered}",
            limit=f"RUNTIME={wanted}",
            remedy=f"run 'make repository RUNTIME={wanted}', or leave RUNTIME out",
        )


def _print_addresses(server: Server) -> None:
    ports = server.ports
    addresses = {
        "http": f"http://{HOST}:{ports.http}",
        "grpc": f"grpc://{HOST}:{ports.grpc}",
        "metrics": f"http://{HOST}:{ports.metrics}/metrics",
        "pid": server.process.pid,
    }
    print(json.dumps(addresses))


if __name__ == "__main__":
    sys.exit(main())
