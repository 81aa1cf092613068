"""Let coding agents do a task with a recipe's server, and record what their requests cost.

``python -m benchmarks.agents`` installs Claude Code, Codex, Qwen Code and opencode from npm. Each does a task
of five turns in a scratch repository, with all its tools and instructions. Then every process of the server
is killed, it starts again, and each does the task in a new session. Exit codes: 0 measured; 1 an agent could
not be installed or asked nothing, or a server could not be started; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.agents.recording import recording
from benchmarks.harness import Result, markdown, parser_of, run_benchmark, say
from benchmarks.prompt_cache import wait_until_written
from benchmarks.versions.version import ENGINES, Version
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.errors import VerificationError
from pipelines.process import processes_with
from pipelines.program import EXIT_PASS

_FILE = Path(__file__).with_name("agents.yaml")
_REPOSITORY = {
    "area.py": "def area(width, height):\n    return width + height\n",
    "test_area.py": "from area import area\n\n\ndef test_area():\n    assert area(3, 4) == 12\n",
}
_TURNS = (
    "Read area.py and say in one sentence what it does.",
    "Read test_area.py. What does it expect?",
    "Run the test with: python3 -m pytest -q test_area.py",
    "Repair area.py, so that the test passes.",
    "Run the test again and say whether it passes.",
)
_LAST = 300  # characters of what an agent says that are kept


@dataclass(frozen=True)
class Agent:
    """A coding agent.

    Attributes:
        package: Its npm package with the version.
        command: Its program, and the options of every turn.
        go_on: Options of later turns.
        environment: Variables; ``{url}`` is the server's.
        files: Path below its home -> content, with ``{url}``.
    """

    package: str
    command: list[str]
    go_on: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.agents", __doc__ or "", "qwen2-5-coder-cpu")
    parser.add_argument("--agents", help="names, such as Codex,opencode (default: all)")
    parser.add_argument("--minutes", type=whole_number(1), default=15, help="most of a turn (%(default)s)")
    return run_benchmark(parser, _measure, arguments)


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.agents", command_line, recipe=options.recipe)
    known = {name: Agent(**each) for name, each in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()}
    agents = {name: known[name] for name in (options.agents.split(",") if options.agents else known)}
    turns: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="agents-") as scratch:
        programs = _installed(Path(scratch) / "npm", [agent.package for agent in agents.values()])
        server = Version.of_checkout(
            Path(scratch) / "server", options.recipe, max_seq_len=24_576, max_batch_size=2, prompt_cache_gb=8
        )
        server.build(ENGINES)
        for session in ("a new server", "after a restart"):
            with server.running() as running:
                for name, agent in agents.items():
                    with recording(running.ports.openai) as (url, asked):
                        environment = _prepare(agent, Path(scratch), programs, url)
                        for number in range(len(_TURNS)):
                            asked.clear()
                            said = _turn(agent, number, Path(scratch) / "work", environment, options.minutes)
                            each = {"agent": name, "session": session, "turn": number + 1, "said": said}
                            turns.append({**each, "asked": [asdict(request) for request in asked]})
                            say(str(turns[-1]))
                wait_until_written(next(server.tree.glob(".run/*/prompt_cache")))
                for process, _ in list(processes_with(f"{server.tree}/")):
                    os.kill(process.pid, signal.SIGKILL)
    silent = [name for name in agents if not any(turn["asked"] for turn in turns if turn["agent"] == name)]
    if silent:
        raise VerificationError(f"asked nothing: {', '.join(silent)}", "read what they said, above")
    rows = [
        [f"{turn['agent']}, {turn['session']}", turn["turn"], len(turn["asked"]), *_cells(turn["asked"])]
        for turn in turns
    ]
    heads = ["Agent", "Turn", "Requests", "Tokens of the longest", "cached", "seconds to its first token"]
    packages = [agent.package for agent in agents.values()]
    document = {"turns": turns, "packages": packages, "conditions": about}
    return Result(markdown(heads, rows), document, EXIT_PASS)


def _cells(asked: Sequence[dict[str, Any]]) -> list[object]:
    longest = max(asked, key=lambda each: each["num_prompt_tokens"], default=None)
    return [longest["num_prompt_tokens"], longest["num_cached"], longest["first_s"]] if longest else ["-"] * 3


def _installed(folder: Path, packages: Sequence[str]) -> Path:
    """Install packages of npm, and return the folder of their programs."""
    scripts = ",".join(package.rpartition("@")[0] for package in packages)
    options = ["--no-audit", "--no-fund", "--allow-scripts", scripts, "--prefix", str(folder)]
    command = ["npm", "install", "--global", *options, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VerificationError(f"npm failed: {done.stderr[-500:]}", "install Node.js 20 with npm")
    return folder / "bin"


def _prepare(agent: Agent, scratch: Path, programs: Path, url: str) -> dict[str, str]:
    """Write the agent's home and a repository anew; return the variables of its turns."""
    home, work = scratch / "home", scratch / "work"
    for folder in (home, work):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for root, files in ((home, agent.files), (work, _REPOSITORY)):
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content.replace("{url}", url), encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    own = {name: value.replace("{url}", url) for name, value in agent.environment.items()}
    return {**own, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}


def _turn(agent: Agent, number: int, work: Path, environment: dict[str, str], minutes: int) -> str:
    """Let an agent answer a turn of the task; return the end of what it says."""
    command = [*agent.command, *(agent.go_on if number else ()), _TURNS[number]]
    try:
        done = subprocess.run(
            command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60 * minutes,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it was ended after {minutes} minutes"
    return (
        done.stdout[-_LAST:]
        if done.returncode == 0
        else f"exit code: {done.returncode}: {done.stderr[-_LAST:]}"
    )


if __name__ == "__main__":
    sys.exit(main())
