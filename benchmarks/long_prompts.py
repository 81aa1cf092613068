"""Measure how a long prompt slows other requests down, and how fast a server is behind long contexts.

``python -m benchmarks.long_prompts`` streams answers while a prompt of 12,000 tokens is read, reads two such
prompts at once, and closes the connection of another. Then it decodes behind ever longer prompts, beside
llama.cpp with the same files, cores and type of KV cache. Exit codes: 0 measured; 1 a server could not be
built or started, or did not answer; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx

from benchmarks.draft_length.asking import Prompt, ask
from benchmarks.harness import Result, markdown, parser_of, run_benchmark, say
from benchmarks.peers.environment import ensure_environment
from benchmarks.peers.figures import LLAMA_CPP
from benchmarks.peers.llama_cpp import LlamaCpp, Settings, gguf_files
from benchmarks.streams import TIMEOUT_S, Streamed
from benchmarks.versions.version import ENGINES, RunningVersion, Version
from build.recipe import load_recipe
from pipelines.bench.reporting.conditions import conditions
from pipelines.client import CompletionRequest
from pipelines.command_line.options import whole_number, whole_numbers
from pipelines.command_line.prompt_lengths import read_tokenizer
from pipelines.deploy.ports import HOST

_ROOT = Path(__file__).resolve().parents[1]
_MAX_SEQ_LEN = 32_768
_NUM_STREAMED, _NUM_DECODED = 96, 64
_READ_S = 5.0  # of a prompt before its client leaves
_DRAFT_LENGTH = 2  # of llama.cpp


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = parser_of("benchmarks.long_prompts", __doc__ or "", "qwen2-5-coder-cpu")
    parser.add_argument(
        "--long", type=whole_number(1_000), default=12_000, help="tokens of a long prompt (%(default)s)"
    )
    parser.add_argument(
        "--contexts",
        type=whole_numbers(256),
        default=(1_000, 8_000, 16_000, 32_000),
        help="tokens of the prompts that answers are decoded behind (1000,8000,16000,32000)",
    )
    return run_benchmark(parser, _measure, arguments)


def _measure(options: argparse.Namespace, command_line: list[str]) -> Result:
    about = conditions("benchmarks.long_prompts", command_line, recipe=options.recipe)
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_ROOT.glob("docs/*/*.md")))
    with tempfile.TemporaryDirectory(prefix="long-prompts-") as scratch:
        server = Version.of_checkout(
            Path(scratch) / "ours",
            options.recipe,
            max_seq_len=_MAX_SEQ_LEN,
            max_batch_size=4,
            prompt_cache_gb=0,
        )
        target = server.build(ENGINES).target
        tokens = read_tokenizer(target).encode(text)
        with server.running() as running:
            beside = _beside_others(running, tokens, options.long)
            ours = _decoded(running.ports.openai, tokens, options.contexts)
        engine = json.loads((target / "engine.json").read_text(encoding="utf-8"))
    theirs = _decoded_by_llama_cpp(options.recipe, engine, tokens, options.contexts)
    contexts = {"draftproof": ours, LLAMA_CPP: theirs}
    lines = [
        markdown(["Beside a long prompt", "measured"], [[name, value] for name, value in beside.items()]),
        markdown(
            ["Engine", *(f"{length:,} tokens" for length in options.contexts)],
            [
                [f"{engine}, {arm}", *(f"{speeds[arm]:.1f}" for speeds in of_length.values())]
                for engine, of_length in contexts.items()
                for arm in next(iter(of_length.values()))
            ],
        ),
        f"Tokens per second, greedy, {_NUM_DECODED} tokens, the prompt in the cache of the server.",
    ]
    return Result("\n\n".join(lines), {"beside_others": beside, "contexts": contexts, "conditions": about})


def _beside_others(running: RunningVersion, tokens: Sequence[int], num_long: int) -> dict[str, float]:
    """Return what other requests feel of long prompts."""
    port = running.ports.openai
    beside, first, second, left = (tokens[number::4][:num_long] for number in range(4))  # no common start
    short = tokens[-200:]
    _stream(port, short, 8)
    alone = [_stream(port, short, _NUM_STREAMED) for _ in range(3)]
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(_stream, port, beside, 1)
        time.sleep(1.0)
        streamed = []
        while not reading.done():
            streamed.append(_stream(port, short, _NUM_STREAMED))
            say(f"beside a long prompt: {streamed[-1].tokens_per_s:.1f} tokens/s")
        say(f"read in {reading.result().first_s:.1f} s")
        streamed = streamed[:-1] or streamed  # the last one went on alone
        together = list(pool.map(lambda part: _stream(port, part, 1).first_s, (first, second)))
    speeds = [statistics.median(each.tokens_per_s for each in given) for given in (alone, streamed)]
    return {
        "tokens of a long prompt": num_long,
        "it is read, beside a stream, in s": round(reading.result().first_s, 1),
        "stream alone, tokens/s": round(speeds[0], 1),
        "stream beside it, share of that speed": round(speeds[1] / speeds[0], 3),
        "longest pause of a stream, s": round(max(each.longest_pause_s for each in streamed), 3),
        "longest time to a first token of a stream, s": round(max(each.first_s for each in streamed), 3),
        "two long prompts at once, first one read after s": round(min(together), 1),
        "second one after s": round(max(together), 1),
        "a client leaves: server idle after s": round(_idle_after(running, left), 2),
    }


def _stream(port: int, prompt: Sequence[int], max_tokens: int, length: int | None = 0) -> Streamed:
    return ask(port, Prompt("tokens", {"prompt": list(prompt)}), max_tokens, 0.0, length)


def _idle_after(running: RunningVersion, prompt: Sequence[int]) -> float:
    """Leave while a prompt is read; return the seconds until no request runs."""
    body = json.dumps({"prompt": list(prompt), "max_tokens": 1, "stream": True})
    with closing(HTTPConnection(HOST, running.ports.openai, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        time.sleep(_READ_S)
    left_s = time.monotonic()
    url = f"http://{HOST}:{running.ports.metrics}/metrics"
    with httpx.Client(trust_env=False) as http:
        while "vllm:num_requests_running 0" not in http.get(url).text.replace(".0", ""):
            time.sleep(0.02)
    return time.monotonic() - left_s


def _decoded(port: int, tokens: Sequence[int], lengths: Sequence[int]) -> dict[int, dict[str, float]]:
    """Return prompt length -> the speed of the target alone and with drafts, in tokens per second."""
    speeds = {}
    for length in lengths:
        prompt = tokens[: min(length, _MAX_SEQ_LEN - 2 * _NUM_DECODED)]
        read = _stream(port, prompt, 8, None)  # by the draft, too
        arms = {"target alone": 0, "with drafts": None}
        speeds[length] = {
            name: round(_stream(port, prompt, _NUM_DECODED, num).tokens_per_s, 2)
            for name, num in arms.items()
        }
        say(f"behind {length} tokens, read in {read.first_s:.1f} s: {speeds[length]}")
    return speeds


def _decoded_by_llama_cpp(
    recipe: str, engine: dict[str, Any], tokens: Sequence[int], lengths: Sequence[int]
) -> dict[int, dict[str, float]]:
    """Return the same of llama.cpp; what it keeps of a prompt is float16, as the recipe's cache."""
    files, interpreter = gguf_files(load_recipe(recipe)), ensure_environment(LLAMA_CPP)
    speeds: dict[int, dict[str, float]] = {length: {} for length in lengths}
    for arm, num in (("target alone", 0), ("with drafts", _DRAFT_LENGTH)):
        settings = Settings(files["target"], files["draft"], num, engine["num_threads"], 1, _MAX_SEQ_LEN)
        log = Path(tempfile.gettempdir()) / f"llama-cpp-{num}.log"
        with closing(LlamaCpp(interpreter, settings, tuple(engine["end_ids"]), log)) as server:
            for length in lengths:
                prompt = tuple(tokens[: min(length, _MAX_SEQ_LEN - 2 * _NUM_DECODED)])
                read, first, whole = (
                    server.ask(CompletionRequest(prompt_ids=prompt, max_tokens=count), "")
                    for count in (1, 1, _NUM_DECODED)
                )
                seconds = whole.e2e_latency_s - first.e2e_latency_s
                speeds[length][arm] = round((len(whole.output_ids) - 1) / seconds, 2)
                say(f"llama.cpp behind {length} tokens, read in {read.e2e_latency_s:.1f} s: {speeds[length]}")
    return speeds


if __name__ == "__main__":
    sys.exit(main())
