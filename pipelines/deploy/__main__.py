"""Start, stop and configure a server: ``python -m pipelines.deploy serve|ready|stop|doctor|...``.

Containers use ``run``, which becomes the server instead of starting one in the background.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.atomic_file import write_whole
from pipelines.building import build_recipe, package_arguments, run_build
from pipelines.deploy.doctor import examine, print_checks
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.ports import DRAIN_S, EXIT_TIMEOUT_S, HOST, PORTS, Endpoint, Ports
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.server import Server, beside, find_server, lock_run_directory, run_directory
from pipelines.deploy.triton.command import ServerCommand, gateway_command
from pipelines.deploy.triton.launch import RUNTIMES
from pipelines.deploy.triton.models import rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP
from pipelines.errors import InvalidRequestError, ServerStartError
from pipelines.places import CODE
from pipelines.program import run_program

ADAPTIVE = "adaptive"


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 1 for an error, 2 for wrong usage."""
    options = _parse(arguments)
    return run_program(lambda: int(options.command(options)))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    recipe, serving, ports, waiting = (argparse.ArgumentParser(add_help=False) for _ in range(4))
    recipe.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    serving.add_argument(
        "--package",
        type=_optional_path,
        metavar="DIRECTORY",
        help="check this package of 'draftproof package' and serve its pair (default: none)",
    )
    serving.add_argument(
        "--public-key",
        type=_optional_path,
        metavar="FILE",
        help="PEM file of the Ed25519 public key that must have signed the package (default: none)",
    )
    serving.add_argument(
        "--front-door",
        type=Path,
        help="YAML file with the settings of OpenAI's API: keys, TLS, address (default: defaults)",
    )
    for port, usual in asdict(Ports()).items():
        ports.add_argument(f"--{port}-port", type=int, default=usual, help="(%(default)s)")
    waiting.add_argument("--timeout-s", type=float, help="seconds to wait (default: depends on the runtime)")

    parser = argparse.ArgumentParser(prog="draftproof", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        command: Callable[[argparse.Namespace], int], name: str, text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=parents)
        added.set_defaults(command=command)
        return added

    text = "build what a recipe lacks, start its server and wait until it is ready"
    serve = add(_serve, "serve", text, recipe, serving, ports, waiting)
    serve.add_argument(
        "--runtime", choices=("", *RUNTIMES), default="", help="runtime (default: the recipe's)"
    )
    serve.add_argument(
        "--default-sampling",
        default="",
        metavar="NAME=VALUE,...",
        help="sampling of requests that send none: temperature, top_p, top_k, min_p, repetition_penalty "
        "(default: the recipe's, else the checkpoint's)",
    )
    serve.add_argument(
        "--prompt-cache-dir",
        default="",
        metavar="DIRECTORY",
        help="folder that keeps computed prompts after the server has ended (default: the recipe's, else "
        ".run/<recipe>/prompt_cache)",
    )
    serve.add_argument(
        "--prompt-cache-gb",
        default="",
        metavar="NUMBER",
        help="its most gigabytes, 0 for none (default: the recipe's, else a tenth of the free disk, at most "
        "20)",
    )
    add(_ready, "ready", "wait until the server is ready", recipe, waiting)
    add(_stop, "stop", "stop the server", recipe)
    add(_doctor, "doctor", "show what this machine has and lacks", ports)
    length = add(_draft_length, "draft-length", "set the draft length, also of a running server", recipe)
    length.add_argument(
        "--num-draft-tokens",
        default=ADAPTIVE,
        help="a number, 0 to switch speculation off, or adaptive (%(default)s)",
    )
    run = add(_run, "run", "serve a run directory in the foreground, for containers", serving, ports)
    run.add_argument("directory", type=Path, help="run directory with a rendered repository")
    run.add_argument("--address", default=HOST, help="address to listen on (%(default)s)")
    for option, default, what in (
        ("--exit-timeout-s", EXIT_TIMEOUT_S, "for the models to unload at shutdown"),
        ("--drain-s", DRAIN_S, "to wait for requests in flight, before that"),
    ):
        run.add_argument(option, type=int, default=default, help=f"seconds {what} (%(default)s)")
    return parser.parse_args(arguments)


def _optional_path(word: str) -> Path | None:
    """Return the path that an option names; None for "", which ``make`` and templates give for no setting."""
    return Path(word) if word else None


def _ports(options: argparse.Namespace) -> Ports:
    return Ports(**{name: getattr(options, f"{name}_port") for name in PORTS})


def _serve(options: argparse.Namespace) -> int:
    folder = options.prompt_cache_dir and str(Path(options.prompt_cache_dir).resolve())
    settings = (
        *("--default-sampling", options.default_sampling),
        *("--prompt-cache-dir", folder),
        *("--prompt-cache-gb", options.prompt_cache_gb),
    )
    if options.package is None:
        _check_none_runs(options.recipe)
        done = _render(options, settings)
    else:
        package = package_arguments(options.package, options.public_key)
        done = run_build("build.repository", [*package, *settings], _report)
    directory = Path(done["model_repository"]).parent
    server = Server.start(directory, _ports(options), front_door=options.front_door)
    _report(f"starting; log {server.log}")
    try:
        seconds = server.wait_ready(options.timeout_s, _report)
    except BaseException:  # not ready, or interrupted: leave nothing behind
        server.stop()
        raise
    _report(f"ready after {seconds:.1f} s")
    _print_addresses(server)
    return 0


def _render(options: argparse.Namespace, settings: tuple[str, ...]) -> dict[str, Any]:
    """Render the recipe's own pair, or the one that a rollout has promoted in its place."""
    directory = run_directory(options.recipe)
    promoted = PairSource.promoted(directory)
    if promoted is None:
        runtime = ("--runtime", options.runtime)
        return build_recipe("build.repository", options.recipe, _report, (*runtime, *settings))
    _report(f"{directory.name}: a rollout has promoted {promoted.name}")
    arguments = [*promoted.arguments, "--run-directory", str(directory), *settings]
    return run_build("build.repository", arguments, _report)


def _check_none_runs(recipe: str) -> None:
    """Raise ServerStartError if a server of a recipe runs; a mistake in the recipe is said first."""
    try:
        Server.check_none_runs(run_directory(recipe))
    except ServerStartError:
        build_recipe("build.repository", recipe, _report, ("--check-recipe",))
        raise


def _ready(options: argparse.Namespace) -> int:
    server = find_server(run_directory(options.recipe))
    print(f"ready after {server.wait_ready(options.timeout_s):.1f} s")
    _print_addresses(server)
    return 0


def _stop(options: argparse.Namespace) -> int:
    directory = run_directory(options.recipe)
    if (second := Server.running(beside(directory))) is not None:  # of a rollout
        second.stop()
    server = Server.running(directory)
    if server is not None:
        print("stopped" if server.stop() else "killed, because it did not stop in time")
        return 0
    was_served = directory.exists()
    Server.clear(directory)
    print(f"no server of recipe {directory.name} is running" + ("" if was_served else ", or ever was here"))
    for other in Server.all_running():
        print(f"one of {other.directory.name} is: {other.stop_command}")
    return int(not was_served)


def _draft_length(options: argparse.Namespace) -> int:
    path = set_draft_length(run_directory(options.recipe), options.num_draft_tokens)
    print(f"default draft length: {options.num_draft_tokens} ({path})")
    return 0


def set_draft_length(directory: Path, wanted: str) -> Path:
    """Write the file that a server reads when it changes: for the next requests, and after a restart.

    Args:
        directory: ``.run/<recipe>`` with its rendered repository.
        wanted: ``adaptive``, or a number of draft tokens; 0 switches speculation off.

    Returns:
        Path of the file.

    Raises:
        InvalidRequestError: The value is invalid, or greater than ``max_draft_len``.
        RepositoryError: There is no rendered repository.
    """
    limit = int(rendered_parameters(directory, LOOP)["max_draft_len"])
    if wanted not in (ADAPTIVE, *map(str, range(limit + 1))):
        raise InvalidRequestError(
            f"num_draft_tokens={wanted!r} is neither '{ADAPTIVE}' nor 0 to max_draft_len={limit}",
            "use one of these; 0 switches speculation off",
        )
    path = directory / "draft_length.json"
    document = {"num_draft_tokens": None if wanted == ADAPTIVE else int(wanted)}
    write_whole(path, json.dumps(document) + "\n")
    return path


def _doctor(options: argparse.Namespace) -> int:
    return print_checks(examine(_ports(options)))


def _run(options: argparse.Namespace) -> int:
    directory = options.directory.resolve()
    endpoint = _endpoint(options)
    lock_run_directory(directory)
    if options.package is not None:
        package = package_arguments(options.package, options.public_key)
        promoted = PairSource.promoted(directory)
        if promoted is not None and promoted.instead_of == str(options.package.resolve()):
            _report(f"a rollout has promoted {promoted.name}")
            package = promoted.arguments
        run_build("build.repository", [*package, "--run-directory", str(directory)], _report)
    Server.of_this_process(directory, endpoint)
    return _become(gateway_command(directory, endpoint))


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


def _become(command: ServerCommand) -> int:
    """Replace this process by the server, so that signals and the exit code need no forwarding."""
    os.chdir(CODE)  # Triton's Python models are imported from there
    os.execve(command.arguments[0], command.arguments, command.environment)


def _print_addresses(server: Server) -> None:
    ports = server.ports
    if ports.openai:
        print(f"  playground    {server.openai_url}/")
        print(f"  OpenAI's API  {server.openai_url}/v1")
        print(f"  sampling      {ServedFiles.read(server.directory).sampling_line()}")
    print(f"  KServe        http://{HOST}:{ports.http}  grpc://{HOST}:{ports.grpc}")
    print(f"  metrics       http://{HOST}:{ports.metrics}/metrics")
    print(f"  to stop it    {server.stop_command}")


if __name__ == "__main__":
    sys.exit(main())
