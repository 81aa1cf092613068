"""Verify a server of another engine, with speculation, by one without.

``python -m benchmarks.other_servers --engine llama-cpp`` installs the engine, serves the demonstration pair
with it twice, and runs ``draftproof verify``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from typing import Any

from benchmarks.harness import Result, markdown, run_benchmark
from benchmarks.other_servers.checkpoints import folder_for
from benchmarks.other_servers.engines import ENGINES, MODEL, PAIR, serving, version
from benchmarks.peers.running_peers import ensure_environment
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.deploy.server import RUN
from pipelines.errors import PeerError

_PORTS = (9411, 9412)


def _verify_engine(options: argparse.Namespace, command_line: list[str]) -> Result:
    """Start both servers, record the control, and judge the candidate."""
    engine = next(each for each in ENGINES if each.name == options.engine)
    python = ensure_environment(engine.name, needs_torch=engine.needs_torch)
    about = conditions("benchmarks.other_servers", command_line)
    folder = folder_for(PAIR, RUN / "other-servers")
    baseline = str(folder / f"{engine.name}.json.gz")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serving(engine, python, folder, port, speculative=speculative))
            for port, speculative in zip(_PORTS, (False, True), strict=True)
        ]
        control, candidate = (each.wait() for each in servers)
        size = ["--prompts", str(PAIR / "prompts"), "--num-prompts", str(options.num_prompts)]
        size += ["--max-tokens", str(options.max_tokens)]
        _verify("--control", control, "--control-model", MODEL, "--record", baseline, *size)
        report = _verify("--against", candidate, "--model", MODEL, "--baseline", baseline)
    rows = [[each["title"], each["verdict"], each["summary"]] for each in report["sections"]]
    package = f"`{engine.package}` {version(engine, python)}"
    verdict = f"{engine.title}, {package}, drafts with {engine.drafts}: **{report['verdict']}**."
    document = {"verdict": report["verdict"], "sections": report["sections"], "conditions": about}
    return Result(f"{verdict}\n\n{markdown(['Section', 'Verdict', 'Summary'], rows)}", document)


def _verify(*arguments: str) -> dict[str, Any]:
    """Run ``draftproof verify`` and return its last line."""
    command = [sys.executable, "-m", "pipelines", "verify", "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    last = (done.stdout.splitlines() or [""])[-1]
    try:
        document: dict[str, Any] = json.loads(last)
    except ValueError:
        document = {"error": f"exit code {done.returncode}, {last[:200]!r}"}
    if "error" in document:
        raise PeerError("a server cannot be verified", values=str(document["error"]))
    return document


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.other_servers", description=__doc__)
    parser.add_argument("--engine", choices=[each.name for each in ENGINES], required=True)
    parser.add_argument("--num-prompts", type=whole_number(1), default=320, help="(default: %(default)s)")
    parser.add_argument("--max-tokens", type=whole_number(1), default=24, help="(default: %(default)s)")
    return run_benchmark(parser, _verify_engine, arguments)


if __name__ == "__main__":
    sys.exit(main())
