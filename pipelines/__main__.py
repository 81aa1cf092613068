"""The command ``draftproof``: ``draftproof serve --recipe demo`` is ``python -m pipelines serve ...``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from pipelines.program import run_program

_DEPLOY = "pipelines.deploy.__main__"

PROGRAMS: dict[str, tuple[str, str]] = {
    "doctor": (_DEPLOY, "say what this machine has and lacks"),
    "engines": ("build.engines", "compile the two engines of a recipe"),
    "preflight": ("build.preflight", "check a pair and plan its memory, from config.json files alone"),
    "llm-api": ("build.llm_api", "render a pair for TensorRT-LLM's LLM API"),
    "quantize": ("build.quantize", "quantize the checkpoints of a recipe with ModelOpt"),
    "repository": ("build.repository", "render a Triton model repository, engines first"),
    "package": ("build.package", "write a compiled pair as a package that any machine can serve"),
    "serve": (_DEPLOY, "start the server of a rendered repository or a package, and wait until it is ready"),
    "run": (_DEPLOY, "be that server, in the foreground: what a container runs"),
    "front-door": ("pipelines.front_door.fleet.__main__", "serve OpenAI's API with the servers of a fleet"),
    "ready": (_DEPLOY, "wait until the server is ready"),
    "stop": (_DEPLOY, "stop the server"),
    "draft-length": (_DEPLOY, "set the draft length, of a running server too"),
    "lookup-corpus": (_DEPLOY, "set the texts in which drafts are looked up, of a running server too"),
    "api-key": ("pipelines.front_door.access.__main__", "add or remove an API key of OpenAI's API"),
    "upstreams": (
        "pipelines.upstreams.__main__",
        "answer OpenAI's API with two servers of any engine, and roll the new one out",
    ),
    "canary": ("pipelines.canary.__main__", "roll a new pair out step by step, or roll it back"),
    "ask": ("pipelines.client.__main__", "ask a server to continue a text"),
    "demo": ("pipelines.demo.__main__", "build, serve, generate, compare, stop"),
    "try": (
        "pipelines.demo.own_pair",
        "serve a pair of your own, directories or ids of the Hugging Face hub, as demo does",
    ),
    "verify": ("pipelines.validation.__main__", "prove that generate answers as generate_target"),
    "bench": ("pipelines.bench.__main__", "time generate against generate_target"),
}
"""Name -> the module whose ``main`` it runs, and what it does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first argument names on the others; returns its exit code."""
    name, *others = _parsed(sys.argv[1:] if arguments is None else list(arguments))
    module = PROGRAMS[name][0]
    given = [name, *others] if module == _DEPLOY else others
    # Imported when it is asked for: some programs need packages that others do without.
    return run_program(lambda: int(importlib.import_module(module).main(given)))


def _parsed(arguments: list[str]) -> list[str]:
    width = max(map(len, PROGRAMS)) + 2
    parser = argparse.ArgumentParser(
        prog="draftproof",
        usage="draftproof COMMAND [options]",
        description="Speculative decoding in Triton. 'draftproof COMMAND --help' lists a command's options.",
        epilog="\n".join(["commands:", *(f"  {name:{width}}{PROGRAMS[name][1]}" for name in PROGRAMS)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=PROGRAMS, metavar="COMMAND", help="one of those below")
    parser.parse_args(arguments[:1])
    return arguments


if __name__ == "__main__":
    sys.exit(main())
