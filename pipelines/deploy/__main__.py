"""Start, stop and configure a server: ``python -m pipelines.deploy serve|ready|stop|doctor|...``.

Containers use ``run``, and ``mpirun`` in them ``rank``. These two become the server instead of starting one
in the background.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from pipelines.building import build_recipe, package_arguments, run_build
from pipelines.deploy.doctor import examine, print_findings
from pipelines.deploy.live_settings import ADAPTIVE, set_draft_length, set_lookup_corpus
from pipelines.deploy.ports import DRAIN_S, EXIT_TIMEOUT_S, HOST, PORTS, Endpoint, Ports
from pipelines.deploy.server import RUN, Server, find_server, lock_run_directory, run_directory
from pipelines.deploy.triton.command import ServerCommand, gateway_command, rank_command
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.launch import RUNTIMES, Launch
from pipelines.deploy.triton.nvidia_triton import RANK_VARIABLE
from pipelines.errors import ServerStartError
from pipelines.program import run_program


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 1 for an error, 2 for wrong usage."""
    options = _parse(arguments)
    return run_program(lambda: int(options.command(options)))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="draftproof", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command, text in (
        ("serve", _serve, "build what the server of a recipe lacks, start it, and wait until it is ready"),
        ("ready", _ready, "wait until the server is ready"),
        ("stop", _stop, "stop the server"),
        ("draft-length", _draft_length, "set the draft length, also of a running server"),
        (
            "lookup-corpus",
            _lookup_corpus,
            "set the texts in which drafts are looked up, also of a running server",
        ),
        ("doctor", _doctor, "show what this machine has and lacks"),
        ("run", _run, "serve a run directory in the foreground, for containers"),
        ("rank", _rank, "run one rank of that server, for mpirun"),
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
                help="seconds for the models to unload at shutdown (%(default)s)",
            )
            sub.add_argument(
                "--drain-s",
                type=int,
                default=DRAIN_S,
                help="seconds to wait for requests in flight, before that (%(default)s)",
            )
        elif name != "doctor":
            sub.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
        if name in ("serve", "run"):
            sub.add_argument(
                "--package",
                type=_optional_path,
                metavar="DIRECTORY",
                help="check this package of 'draftproof package' and serve its pair (default: none)",
            )
            sub.add_argument(
                "--public-key",
                type=_optional_path,
                metavar="FILE",
                help="PEM file of the Ed25519 public key that must have signed the package (default: none)",
            )
        if name == "serve":
            sub.add_argument(
                "--runtime",
                choices=("", *RUNTIMES),
                default="",
                help="fail if the rendered repository has another runtime (default: accept any)",
            )
        if name in ("serve", "run", "rank"):
            sub.add_argument(
                "--front-door",
                type=Path,
                help="YAML file with the settings of OpenAI's API: keys, TLS, address (default: defaults)",
            )
        if name in ("serve", "doctor", "run", "rank"):
            for port in PORTS:
                variable = f"DRAFTPROOF_{port.upper()}_PORT"
                sub.add_argument(
                    f"--{port}-port", type=int, help=f"(default: ${variable}, else the usual one)"
                )
        if name == "draft-length":
            sub.add_argument(
                "--num-draft-tokens",
                default=ADAPTIVE,
                help="a number, 0 to switch speculation off, or adaptive (%(default)s)",
            )
        if name == "lookup-corpus":
            sub.add_argument(
                "texts",
                type=Path,
                nargs="*",
                help="text files, *.jsonl with a text in each line, and folders (default: remove the corpus)",
            )
        if name in ("serve", "ready"):
            sub.add_argument(
                "--timeout-s", type=float, help="seconds to wait (default: depends on the runtime)"
            )
    return parser.parse_args(arguments)


def _optional_path(word: str) -> Path | None:
    """Return the path that an option names; None for "", which ``make`` and templates give for no setting."""
    return Path(word) if word else None


def _ports(options: argparse.Namespace) -> Ports:
    default = Ports.from_environment()
    chosen = {
        name: getattr(options, f"{name}_port")
        for name in PORTS
        if getattr(options, f"{name}_port") is not None
    }
    return Ports(**{**asdict(default), **chosen})


def _serve(options: argparse.Namespace) -> int:
    if options.package is None:
        build_recipe("build.repository", options.recipe, _report, ("--runtime", options.runtime))
        directory = run_directory(options.recipe)
    else:
        directory = _render_package(options.package, options.public_key)
    _check_runtime(directory, options.runtime)
    server = Server.start(directory, _ports(options), front_door=options.front_door)
    print(f"starting process {server.process.pid}; log {server.log}", flush=True)
    try:
        seconds = server.wait_ready(options.timeout_s)
    except BaseException:  # not ready, or interrupted: leave nothing behind
        server.stop()
        raise
    print(f"ready after {seconds:.1f} s; stop it with 'draftproof stop{_recipe_option(directory)}'")
    _print_addresses(server)
    return 0


def _recipe_option(directory: Path) -> str:
    """Return the option that names the recipe of a run directory, "" for the default."""
    return "" if directory.name == "demo" else f" --recipe {directory.name}"


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
        print(f"no server of recipe {directory.name} is running")
        for other in sorted(RUN.glob("*/server.json")):
            if (running := Server.running(other.parent)) is not None:
                ports = running.ports
                print(
                    f"running: {other.parent.name}, gRPC port {ports.grpc}, process {running.process.pid}; "
                    f"stop it with 'draftproof stop{_recipe_option(other.parent)}'"
                )
        return 0
    print("stopped" if server.stop() else "killed, because it did not stop in time")
    return 0


def _draft_length(options: argparse.Namespace) -> int:
    path = set_draft_length(run_directory(options.recipe), options.num_draft_tokens)
    print(f"default draft length: {options.num_draft_tokens} ({path})")
    return 0


def _lookup_corpus(options: argparse.Namespace) -> int:
    set_lookup_corpus(run_directory(options.recipe), options.texts, _report)
    return 0


def _doctor(options: argparse.Namespace) -> int:
    return print_findings(examine(_ports(options)))


def _run(options: argparse.Namespace) -> int:
    directory = options.directory.resolve()
    endpoint = _endpoint(options)
    lock_run_directory(directory)
    if options.package is not None:
        _render_package(options.package, options.public_key, directory)
    return _become(gateway_command(directory, endpoint))


def _rank(options: argparse.Namespace) -> int:
    text = os.environ.get(RANK_VARIABLE, "")
    if not text.isdecimal():
        raise ServerStartError(
            "the rank of this process is unknown",
            values=f"{RANK_VARIABLE}={text!r}",
            limit="this command must be started by Open MPI's mpirun",
            remedy="use 'python -m pipelines.deploy run', which starts mpirun",
        )
    endpoint = _endpoint(options)
    return _become(rank_command(options.directory.resolve(), endpoint, int(text)))


def _report(line: str) -> None:
    print(line, flush=True)


def _endpoint(options: argparse.Namespace) -> Endpoint:
    return Endpoint(
        _ports(options),
        options.address,
        options.exit_timeout_s,
        options.drain_s,
        options.front_door.resolve() if options.front_door else None,
    )


def _render_package(package: Path, public_key: Path | None, run_directory: Path | None = None) -> Path:
    """Check a package and render its pair into a run directory.

    Args:
        package: Directory of the package.
        public_key: PEM file of the key that must have signed it; None to accept any package.
        run_directory: Run directory of the server; None for ``.run/<recipe of the package>``.

    Returns:
        The run directory.

    Raises:
        EngineBuildError: The package was refused or could not be rendered; why is on standard error.
    """
    arguments = package_arguments(package, public_key)
    if run_directory is not None:
        arguments += ["--run-directory", str(run_directory.resolve())]
    done = run_build("build.repository", arguments, _report)
    return Path(done["model_repository"]).parent


def _become(command: ServerCommand) -> int:
    """Replace this process by the server, so that signals and the exit code need no forwarding."""
    os.chdir(REPOSITORY_ROOT)  # Triton's Python models are imported from there
    os.execve(command.arguments[0], command.arguments, command.environment)


def _check_runtime(directory: Path, wanted: str) -> None:
    rendered = Launch.read(directory).runtime
    if wanted not in ("", rendered):
        raise ServerStartError(
            "the rendered repository has another runtime",
            values=f"{directory / 'model_repository'}: {rendered}",
            limit=f"--runtime {wanted}",
            remedy=f"run 'draftproof repository --runtime {wanted}', or leave out --runtime",
        )


def _print_addresses(server: Server) -> None:
    ports = server.ports
    addresses = {
        "http": f"http://{HOST}:{ports.http}",
        "grpc": f"grpc://{HOST}:{ports.grpc}",
        "metrics": f"http://{HOST}:{ports.metrics}/metrics",
        "pid": server.process.pid,
    }
    if ports.openai:
        addresses["openai"] = f"{server.openai_url}/v1"
        addresses["playground"] = f"{server.openai_url}/"
    print(json.dumps(addresses))


if __name__ == "__main__":
    sys.exit(main())
