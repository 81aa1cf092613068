"""Ask servers to complete 40 functions and to answer 40 questions, and count what is right.

``python -m benchmarks.quality.tasks TARGET DRAFT int8 int4 llama.cpp --output docs/results/tasks.json``
serves the pair at each quantization of ours and the target with llama.cpp, and asks each server over OpenAI's
API, greedily: ours with the draft and without it, which must give the same answers, byte for byte. The
address of a running server may stand among the arms; it is asked as it is. The checks run code that the
models wrote, as ``benchmarks/quality/scoring.py`` says. Exit codes: 0 success; 1 answers with the draft
differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import httpx

from benchmarks.harness import Result, markdown, run_benchmark, say
from benchmarks.peers.running_peers import ensure_environment
from benchmarks.quality.scoring import Task, tasks
from build.recipe import REPOSITORY_ROOT
from pipelines.bench.reporting.conditions import conditions
from pipelines.building import build_recipe, run_build
from pipelines.command_line.options import whole_number
from pipelines.demo.own_pair import named_checkpoint
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import RUN, Server
from pipelines.errors import PeerError
from pipelines.program import EXIT_FAIL, EXIT_PASS

QUANTIZATIONS = ("auto", "int8", "int4", "none", "checkpoint")
"""Arms of ours, as ``draftproof try`` names them."""

LLAMA_CPP = "llama.cpp"
ARMS = (*QUANTIZATIONS, LLAMA_CPP)

_FOLDER = RUN / "quality"
_MAX_SEQ_LEN = 1024
_TIMEOUT_S = 600.0


def answers(url: str, asked: Sequence[Task], num_at_once: int, **fields: Any) -> list[str]:
    """Ask a server for the answers to tasks.

    Args:
        url: Its address.
        asked: The tasks.
        num_at_once: Concurrent requests.
        fields: Further fields of each request.
    """
    with (
        httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client,
        ThreadPoolExecutor(num_at_once) as pool,
    ):

        def ask(task: Task) -> str:
            message = {"role": "user", "content": task.prompt}
            body = {"messages": [message], "temperature": 0, "max_tokens": task.max_tokens, **fields}
            response = client.post("/v1/chat/completions", json=body).raise_for_status()
            return str(response.json()["choices"][0]["message"]["content"] or "")

        return list(pool.map(ask, asked))


@contextmanager
def _served(arm: str, options: argparse.Namespace) -> Iterator[str]:
    """Yield the address of the server of an arm."""
    if arm.startswith("http"):
        yield arm
    elif arm == LLAMA_CPP:
        python = ensure_environment("llama-cpp", needs_torch=False)
        file = str(Path(options.target).resolve())
        command = [str(python), "-m", "benchmarks.quality.llama_cpp_server", file]
        with Popen(command, cwd=REPOSITORY_ROOT, stdin=PIPE, stdout=PIPE, text=True) as server:
            assert server.stdout is not None
            address = next((line.strip() for line in server.stdout if line.startswith("http")), "")
            if not address:
                values = f"{options.target}, exit code {server.wait()}"
                raise PeerError(f"llama.cpp does not serve: {values}", "read what it says above")
            yield address
    else:
        recipe = str(_FOLDER / f"{arm}.yaml")
        Path(recipe).unlink(missing_ok=True)
        pair = [named_checkpoint(options.target), named_checkpoint(options.draft)]
        size = ["--max-seq-len", str(_MAX_SEQ_LEN)]
        run_build("build.own_pair", [*pair, "--output", recipe, "--quantization", arm, *size], say)
        directory = Path(build_recipe("build.repository", recipe, say)["model_repository"]).parent
        with Server.start(directory, Ports.free(with_openai=True)) as server:
            server.wait_ready()
            yield server.openai_url


def _arms(options: argparse.Namespace, asked: Sequence[Task]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the name of each arm, its answers, and those that they must equal."""
    for arm in options.arms:
        with _served(arm, options) as url:
            found = answers(url, asked, options.at_once)
            if arm not in QUANTIZATIONS:
                yield arm, found, found
                continue
            alone = answers(url, asked, options.at_once, num_draft_tokens=0)
        yield f"{arm}, target alone", alone, alone
        yield f"{arm}, with the draft", found, alone


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.quality.tasks", command_line)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    asked, arms = tasks(), dict[str, dict[str, Any]]()
    for name, found, alone in _arms(options, asked):
        right = [task.is_right(text) for task, text in zip(asked, found, strict=True)]
        passed = Counter(task.kind for task, is_right in zip(asked, right, strict=True) if is_right)
        num_different = sum(one != other for one, other in zip(found, alone, strict=True))
        arms[name] = {"passed": passed, "num_different": num_different, "right": right, "answers": found}
        say(f"{name}: {dict(passed)} right, {num_different} answers differ from the target's")
    count = Counter(task.kind for task in asked)
    rows = [
        [name, *(f"{arm['passed'][kind]} of {count[kind]}" for kind in count), arm["num_different"]]
        for name, arm in arms.items()
    ]
    table = markdown(["Arm", *(kind.capitalize() for kind in count), "Answers that differ"], rows)
    is_equal = not any(arm["num_different"] for arm in arms.values())
    document = {"arms": arms, "at_once": options.at_once, "conditions": about}
    return Result(table, document, EXIT_PASS if is_equal else EXIT_FAIL)


def _arm(text: str) -> str:
    if text not in ARMS and not text.startswith("http"):
        raise argparse.ArgumentTypeError(f"{text!r} is no arm")
    return text


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.tasks", description=__doc__)
    parser.add_argument("target", help="GGUF file of the target")
    parser.add_argument("draft", help="checkpoint of the draft")
    parser.add_argument("arms", nargs="+", type=_arm, metavar="ARM", help=", ".join((*ARMS, "http://...")))
    parser.add_argument("--at-once", type=whole_number(1), default=4, help="requests (%(default)s)")
    return run_benchmark(parser, _measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
