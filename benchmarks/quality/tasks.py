"""Ask servers to complete 40 functions and to answer 40 questions, and count what is right.

``python -m benchmarks.quality.tasks int8=http://127.0.0.1:8000 llama.cpp=http://127.0.0.1:8080`` asks each
server over OpenAI's API, greedily, and once more with ``num_draft_tokens`` 0. One of ours answers without its
draft then, byte for byte the same; others do not know the field. The checks run code that the models wrote,
as ``benchmarks/quality/scoring.py`` says. Exit codes: 0 success; 1 the answers of a server differ; 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks.harness import Result, markdown, run_benchmark, say
from benchmarks.quality.scoring import Task, tasks
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.program import EXIT_FAIL, EXIT_PASS

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


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.quality.tasks", command_line)
    asked, servers = tasks(), dict[str, dict[str, Any]]()
    for name, url in options.servers:
        alone = answers(url, asked, options.at_once, num_draft_tokens=0)
        found = answers(url, asked, options.at_once)
        right = [task.is_right(text) for task, text in zip(asked, found, strict=True)]
        passed = Counter(task.kind for task, is_right in zip(asked, right, strict=True) if is_right)
        num_different = sum(one != other for one, other in zip(found, alone, strict=True))
        servers[name] = {"passed": passed, "num_different": num_different, "right": right, "answers": found}
        say(f"{name}: {dict(passed)} right, {num_different} answers differ without a draft")
    count = Counter(task.kind for task in asked)
    rows = [
        [name, *(f"{each['passed'][kind]} of {count[kind]}" for kind in count), each["num_different"]]
        for name, each in servers.items()
    ]
    table = markdown(["Server", *(kind.capitalize() for kind in count), "Other answers without draft"], rows)
    is_equal = not any(each["num_different"] for each in servers.values())
    document = {"servers": servers, "at_once": options.at_once, "conditions": about}
    return Result(table, document, EXIT_PASS if is_equal else EXIT_FAIL)


def _server(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not name or not url.startswith("http"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=http://HOST:PORT")
    return name, url


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.tasks", description=__doc__)
    parser.add_argument("servers", nargs="+", type=_server, metavar="NAME=URL", help="running servers")
    parser.add_argument("--at-once", type=whole_number(1), default=4, help="requests (%(default)s)")
    return run_benchmark(parser, _measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
