"""The command ``draftproof``: ``draftproof serve --recipe demo`` is ``python -m pipelines serve ...``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.program import run_program

_DEPLOY = "pipelines.deploy.__main__"

USUAL: dict[str, tuple[str, str]] = {
    "doctor": (_DEPLOY, "say what this machine has and lacks"),
    "demo": ("pipelines.demo.__main__", "build the demonstration pair, serve, generate, compare, stop"),
    "try": (
        "pipelines.demo.own_pair",
        "the same with a target of your own; of several drafts, choose the best",
    ),
    "serve": (_DEPLOY, "start a server, building what it lacks, and wait until it is ready"),
    "chat": ("pipelines.command_line.chat", "talk to the target in the terminal"),
    "ready": (_DEPLOY, "wait until the server is ready"),
    "stop": (_DEPLOY, "stop the server"),
    "verify": ("pipelines.validation.__main__", "prove that answers are those of the target alone"),
    "bench": ("pipelines.bench.__main__", "time the pair against the target alone"),
    "canary": ("pipelines.canary.__main__", "roll a new pair out step by step, or roll it back"),
}
"""Commands that a user needs first: name -> the module whose ``main`` it runs, and what it does."""

FURTHER: dict[str, tuple[str, str]] = {
    "preflight": ("build.preflight", "check a pair, plan its memory, and say what its quantization costs"),
    "engines": ("build.engines", "compile the two engines of a recipe"),
    "repository": ("build.repository", "render a Triton model repository, engines first"),
    "package": ("build.package", "write a compiled pair as a package that any machine can serve"),
    "quantize": ("build.quantize", "quantize the checkpoints of a recipe with ModelOpt"),
    "run": (_DEPLOY, "be a server, in the foreground: what a container runs"),
    "upstreams": (
        "pipelines.upstreams.__main__",
        "answer OpenAI's API with a fleet, or roll a server of any engine out",
    ),
    "api-key": ("pipelines.front_door.access.__main__", "add or remove an API key of OpenAI's API"),
    "draft-length": (_DEPLOY, "set the draft length, of a running server too"),
}
"""Commands that a user may need later, likewise."""

PROGRAMS = {**USUAL, **FURTHER}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names on the others; returns its exit code."""
    name, *others = parsed(sys.argv[1:] if arguments is None else list(arguments))
    module = PROGRAMS[name][0]
    given = [name, *others] if module == _DEPLOY else others
    # Imported when it is asked for: some programs need packages that others do without.
    return run_program(lambda: int(importlib.import_module(module).main(given)))


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from pipelines.version import Sources

        print(Sources.find().line())
        parser.exit()


def parsed(arguments: list[str]) -> list[str]:
    """Return the name of a program and its arguments; the option ``--home`` before them is carried out."""
    parser = argparse.ArgumentParser(
        prog="draftproof",
        usage="draftproof [--home DIRECTORY] COMMAND [options]",
        description="Speculative decoding in Triton. 'draftproof COMMAND --help' lists a command's options.",
        epilog=f"commands:\n{_list_of(USUAL)}\n\nfurther commands:\n{_list_of(FURTHER)}\n\n"
        "exit codes: 0 passed or done; 1 failed; 2 wrong usage; 3 inconclusive; 130 interrupted.\n"
        "make reports each failure as 2: use the command itself in scripts.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show version, commit and OpenVINO")
    parser.add_argument(
        "--home",
        metavar="DIRECTORY",
        default=os.environ.get("DRAFTPROOF_HOME"),
        help="folder for engines, logs and caches (default: $DRAFTPROOF_HOME, else the checkout; of an "
        "installed package, what the XDG directories say)",
    )
    parser.add_argument("command", choices=PROGRAMS, metavar="COMMAND", help="one of those below")
    parser.add_argument("others", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    options = parser.parse_args(arguments)
    if options.home:  # before anything imports pipelines.places, here or in a program that this one starts
        os.environ["DRAFTPROOF_HOME"] = str(Path(options.home).absolute())
    return [options.command, *options.others]


def _list_of(programs: dict[str, tuple[str, str]]) -> str:
    width = max(map(len, PROGRAMS)) + 2
    return "\n".join(f"  {name:{width}}{text}" for name, (_, text) in programs.items())


if __name__ == "__main__":
    sys.exit(main())
