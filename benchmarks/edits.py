"""Measure edits: functions are asked back with one name changed, also with the function as a prediction.

``python -m benchmarks.edits --recipe qwen2-5-coder-cpu`` takes functions of about 60 lines from held-out
modules of the standard library, and renames a local variable of each. The server answers greedily over
OpenAI's API, one request at a time, the arms in turn; the prompt is in its cache. Exit codes: 0 success; 1 an
answer differs from the target's; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import Result, interval_cell, markdown, median_interval, run_benchmark, say
from build.quantization.corpus import load_corpus
from pipelines.bench.reporting.conditions import conditions
from pipelines.building import build_recipe
from pipelines.command_line.options import whole_number
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.program import EXIT_FAIL, EXIT_PASS

_LINES = range(50, 71)
_TIMEOUT_S = 600.0
_ALONE, _DRAFT, _PREDICTION = "target alone", "with the draft", "with the draft and a prediction"


@dataclass(frozen=True)
class Edit:
    """A function and the change that is asked for.

    Attributes:
        name: Name of the function.
        source: Its text.
        old: A local variable.
        new: Its new name.
    """

    name: str
    source: str
    old: str
    new: str

    def body(self) -> dict[str, Any]:
        """Return the request."""
        task = (
            f"Rename the variable `{self.old}` to `{self.new}` in this function. Return the whole function, "
            f"otherwise unchanged, in one code block.\n\n```python\n{self.source}\n```"
        )
        return {"messages": [{"role": "user", "content": task}], "temperature": 0, "max_tokens": 1024}

    def fields(self) -> Mapping[str, dict[str, Any]]:
        """Return the further fields of the request in each arm."""
        prediction = {"type": "content", "content": f"```python\n{self.source}\n```"}
        return {_ALONE: {"num_draft_tokens": 0}, _DRAFT: {}, _PREDICTION: {"prediction": prediction}}


def edits() -> Iterator[Edit]:
    """Yield the functions of the held-out modules that have so many lines, longest modules first."""
    for document in sorted(load_corpus().held_out, key=lambda each: -len(each.text)):
        for node in ast.walk(ast.parse(document.text)):
            if not isinstance(node, ast.FunctionDef):
                continue
            source = ast.get_source_segment(document.text, node) or ""
            if len(source.splitlines()) not in _LINES:
                continue
            stored = [
                each.id
                for each in ast.walk(node)
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and len(each.id) > 2
            ]
            if stored:
                (old, _), *_ = Counter(stored).most_common(1)
                whole = textwrap.dedent(" " * node.col_offset + source)
                yield Edit(node.name, whole, old, f"new_{old}")


def _seconds(client: httpx.Client, body: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
    started_s = time.perf_counter()
    response = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return time.perf_counter() - started_s, response


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.edits", command_line, recipe=options.recipe)
    directory = Path(build_recipe("build.repository", options.recipe, say)["model_repository"]).parent
    measured = []
    with Server.start(directory, Ports.free(with_openai=True)) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.openai_url, timeout=_TIMEOUT_S, trust_env=False) as client:
            for _, edit in zip(range(options.count), edits(), strict=False):
                _seconds(client, edit.body() | {"max_tokens": 1})
                seconds, texts, tokens = dict[str, float](), dict[str, str](), 0
                for arm, fields in edit.fields().items():
                    seconds[arm], answer = _seconds(client, edit.body() | fields)
                    texts[arm] = answer["choices"][0]["message"]["content"]
                    tokens = answer["usage"]["completion_tokens"]
                    say(f"{edit.name}, {arm}: {tokens} tokens in {seconds[arm]:.1f} s")
                is_equal = len(set(texts.values())) == 1
                measured.append(asdict(edit) | {"seconds": seconds, "tokens": tokens, "is_equal": is_equal})
    rows = []
    for arm in (_DRAFT, _PREDICTION):
        ratios = [each["seconds"][_ALONE] / each["seconds"][arm] for each in measured]
        cell = interval_cell(median_interval(ratios), 2)
        rows.append([arm, cell, f"{min(ratios):.2f}, {max(ratios):.2f}"])
    table = markdown(["Arm", "Times the target alone, median", "Least, greatest"], rows)
    lines = statistics.median(len(each["source"].splitlines()) for each in measured)
    num_different = sum(not each["is_equal"] for each in measured)
    note = f"{len(measured)} functions of {lines:g} lines (median); {num_different} answers differ."
    exit_code = EXIT_FAIL if num_different else EXIT_PASS
    return Result(f"{table}\n\n{note}", {"edits": measured, "conditions": about}, exit_code)


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edits", description=__doc__)
    parser.add_argument("--recipe", default="qwen2-5-coder-cpu", help="of the server (%(default)s)")
    parser.add_argument("--count", type=whole_number(1), default=6, help="functions (%(default)s)")
    return run_benchmark(parser, _measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
