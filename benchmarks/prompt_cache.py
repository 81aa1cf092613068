"""Measure what the prompt cache on disk saves after a server was killed, and what it costs before.

``python -m benchmarks.prompt_cache`` serves a recipe, asks a short and a long prompt, ends every process of
the server with SIGKILL, starts it again and asks the same, several times. Then it times starts with 100,000
more files in the cache, and asks two servers, with and without the cache, new prompts in turn. Exit codes: 0
measured, and all answers are equal; 1 an answer differs, or a server could not be built or started; 2 wrong
usage.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.checkout import CheckoutCopy
from benchmarks.draft_length.asking import Prompt, ask
from benchmarks.harness import Result, interval_cell, markdown, median_interval, parser_of, run_benchmark, say
from benchmarks.streams import Streamed
from pipelines.bench.reporting.conditions import conditions
from pipelines.command_line.options import whole_number
from pipelines.process import processes_with
from pipelines.program import EXIT_FAIL, EXIT_PASS

_ROOT = Path(__file__).resolve().parents[1]
_LENGTHS = {"short": 6_400, "long": 51_000}  # in characters, 4.25 to a token
_NEW_LENGTH = 2_200
_NUM_ANSWERED, _NUM_NEW_ANSWERED = 16, 48
_WRITTEN_S = 3.0  # in which the folder does not grow: all is written
_NUM_MORE_FILES = 100_000
_NUM_DRAFT_TOKENS = 2  # a number, as the draft length that a server chooses differs with what it has seen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.prompt_cache", __doc__ or "", "qwen2-5-coder-cpu")
    parser.add_argument("--restarts", type=whole_number(1), default=5, help="(%(default)s)")
    parser.add_argument(
        "--pairs",
        type=whole_number(4),
        default=30,
        help="new prompts, each asked of both servers (%(default)s)",
    )
    return run_benchmark(parser, _measure, arguments)


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.prompt_cache", command_line, recipe=options.recipe)
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_ROOT.glob("docs/*/*.md")))
    prompts = {name: text[:length] for name, length in _LENGTHS.items()}
    with tempfile.TemporaryDirectory(prefix="prompt-cache-") as scratch:
        servers = {
            name: CheckoutCopy.make(
                Path(scratch) / name,
                options.recipe,
                max_seq_len=16_384,
                max_batch_size=2,
                prompt_cache_gb=gigabytes,
            )
            for name, gigabytes in (("with", 8), ("without", 0))
        }
        for server in servers.values():
            server.build()
        asked = _asked_after_kills(servers["with"], prompts, options.restarts)
        starts = _start_times(servers["with"], options.restarts)
        pairs = _asked_in_turn(servers, text, options.pairs)
    num_different = sum(answer.text != given[0].text for given in asked.values() for answer in given)
    num_different += sum(one.text != other.text for one, other in pairs)
    rows = [
        [
            given[0].num_prompt_tokens,
            f"{given[0].first_s:.1f}",
            interval_cell(median_interval([answer.first_s for answer in given[1:]]), 2),
            min(answer.num_cached for answer in given[1:]),
        ]
        for given in asked.values()
    ]
    first, speed = (
        statistics.median(getattr(one, name) / getattr(other, name) for one, other in pairs)
        for name in ("first_s", "tokens_per_s")
    )
    document = {
        "asked": {name: [asdict(answer) for answer in given] for name, given in asked.items()},
        "start_s": starts,
        "with_to_without": {"first_s": round(first, 4), "tokens_per_s": round(speed, 4)},
        "pairs": [[asdict(answer) for answer in pair] for pair in pairs],
        "num_different": num_different,
        "conditions": about,
    }
    heads = ["Prompt, tokens", "first token when new, s", "after SIGKILL and a start, s", "read from disk"]
    lines = [
        markdown(heads, rows),
        f"With the cache, the first token of a new prompt takes {first:.3f} of the time without it, and the "
        f"answer has {speed:.3f} of the speed (medians of {len(pairs)} pairs).",
        "A start takes {more:.1f} s with {num:,} more files, and {as_it_is:.1f} s without (medians).".format(
            num=_NUM_MORE_FILES, **{name: statistics.median(times_s) for name, times_s in starts.items()}
        ),
        f"{num_different} answers differ.",
    ]
    return Result("\n\n".join(lines), document, EXIT_FAIL if num_different else EXIT_PASS)


def _asked_after_kills(
    server: CheckoutCopy, prompts: dict[str, str], num_restarts: int
) -> dict[str, list[Streamed]]:
    """Return the answers to each prompt: by a new server, and after each restart."""
    asked: dict[str, list[Streamed]] = {name: [] for name in prompts}
    for number in range(num_restarts + 1):
        with server.running() as running:
            for name, prompt in prompts.items():
                answer = _ask(running.ports.openai, prompt, _NUM_ANSWERED)
                asked[name].append(answer)
                say(f"start {number}, {name}: {answer.first_s:.2f} s, {answer.num_cached} cached")
            _wait_until_written(next(server.tree.glob(".run/*/prompt_cache")))
            for process, _ in list(processes_with(f"{server.tree}/")):
                os.kill(process.pid, signal.SIGKILL)
    return asked


def _start_times(server: CheckoutCopy, num_starts: int) -> dict[str, list[float]]:
    """Return the seconds of starts with the cache as it is, and with more files in it, in turn."""
    folder = next(server.tree.glob(".run/*/prompt_cache"))
    seconds: dict[str, list[float]] = {"as_it_is": [], "more": []}
    for _ in range(num_starts):
        for name, times_s in seconds.items():
            count = _NUM_MORE_FILES if name == "more" else 0
            files = [folder / f"{number:064x}.block" for number in range(count)]
            for file in files:
                file.touch()
            with server.running() as running:
                times_s.append(round(running.start_s, 2))
            for file in files:
                file.unlink(missing_ok=True)
            say(f"start, {name}: {times_s[-1]} s")
    return seconds


def _asked_in_turn(
    servers: dict[str, CheckoutCopy], text: str, num_pairs: int
) -> list[tuple[Streamed, Streamed]]:
    """Return answers to new prompts by the server with and by that without the cache."""
    order, pairs = random.Random(0), []
    written = next(servers["with"].tree.glob(".run/*/prompt_cache"))
    with servers["with"].running() as first, servers["without"].running() as second:
        ports = {"with": first.ports.openai, "without": second.ports.openai}
        for number in range(num_pairs):
            begin = 60_000 + number * _NEW_LENGTH
            prompt = text[begin : begin + _NEW_LENGTH]
            given = {}
            for name in order.sample([*ports], len(ports)):
                given[name] = _ask(ports[name], prompt, _NUM_NEW_ANSWERED)
                _wait_until_written(written)  # it would slow the other server down
            pairs.append((given["with"], given["without"]))
            ratio = given["with"].first_s / given["without"].first_s
            say(f"pair {number + 1}: {given['with'].first_s:.2f} s until the first token, ratio {ratio:.3f}")
    return pairs


def _wait_until_written(folder: Path) -> None:
    num_files, since_s = -1, time.monotonic()
    while time.monotonic() - since_s < _WRITTEN_S:
        if (found := len(list(folder.glob("*.block")))) != num_files:
            num_files, since_s = found, time.monotonic()
        time.sleep(0.2)


def _ask(port: int, text: str, max_tokens: int) -> Streamed:
    return ask(port, Prompt("text", {"prompt": text}), max_tokens, 0.0, _NUM_DRAFT_TOKENS)


if __name__ == "__main__":
    sys.exit(main())
