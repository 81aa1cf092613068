"""Verify a server of another engine, with speculation, by one without.

``python -m benchmarks.other_servers --engine llama-cpp --output FILE`` installs the engine, serves the
demonstration pair with it twice, and runs ``draftproof verify``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.other_servers.checkpoints import folder_for
from benchmarks.other_servers.engines import ENGINES, PAIR, Engine, model_of, serving, version
from benchmarks.peers.running_peers import ensure_environment
from pipelines.atomic_file import write_whole
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.deploy.server import RUN
from pipelines.errors import PeerError
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

_PORTS = (9411, 9412)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parse(arguments)
    engine = next(each for each in ENGINES if each.name == options.engine)
    given = sys.argv[1:] if arguments is None else arguments

    def work() -> int:
        python = ensure_environment(engine.name, needs_torch=engine.needs_torch)
        about = conditions("benchmarks.other_servers", given)
        known = {"version": version(engine, python), "conditions": about}

        with stopped_by_signals():
            found = _examine(engine, python, options)
        write_whole(options.output, json.dumps(found | known, indent=1) + "\n")
        print(f"wrote {options.output}", flush=True)
        return EXIT_PASS

    return run_program(work)


def _examine(engine: Engine, python: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start both servers, record the control, and judge the candidate."""
    folder = folder_for(PAIR, RUN / "other-servers")
    baseline = folder / f"{engine.name}.json.gz"
    names = [model_of(engine, speculative=each) for each in (False, True)]
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serving(engine, python, folder, port, speculative=speculative))
            for port, speculative in zip(_PORTS, (False, True), strict=True)
        ]
        control, candidate = (each.wait() for each in servers)
        size = ["--prompts", str(PAIR / "prompts"), "--num-prompts", str(options.num_prompts)]
        size += ["--max-tokens", str(options.max_tokens)]
        _verify("--control", control, "--control-model", names[0], "--record", str(baseline), *size)
        page = folder / f"{engine.name}.html"
        report = _verify(
            *("--against", candidate, "--model", names[1]),
            *("--baseline", str(baseline), "--html", str(page)),
        )
    print(f"{engine.name}: {report['verdict']}", flush=True)
    return {
        **{"engine": engine.title, "package": engine.package, "drafts": engine.drafts},
        **{"verdict": report["verdict"], "sections": report["sections"]},
    }


def _verify(*arguments: str) -> dict[str, Any]:
    """Run ``draftproof verify`` and return its last line."""
    command = [sys.executable, "-m", "pipelines", "verify", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.splitlines()
    last = lines[-1] if lines else ""
    try:
        document: dict[str, Any] = json.loads(last)
    except ValueError:
        document = {"error": f"exit code {done.returncode}, {last[:200]!r}"}
    if "error" in document:
        raise PeerError("a server cannot be verified", values=str(document["error"]))
    return document


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_servers", description=__doc__)
    parser.add_argument("--engine", choices=[each.name for each in ENGINES], required=True)
    parser.add_argument("--output", type=Path, required=True, help="result file")
    parser.add_argument("--num-prompts", type=whole_number(1), default=320, help="(default: %(default)s)")
    parser.add_argument("--max-tokens", type=whole_number(1), default=24, help="(default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
