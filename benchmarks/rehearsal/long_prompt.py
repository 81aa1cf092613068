"""Serve a network of a billion parameters with prompts of 32,000 tokens.

``python -m benchmarks.rehearsal.long_prompt --output FILE`` writes a pair with random weights and the shapes
of Llama 3.2 1B and SmolLM2 135M, builds it and serves it. It asks for the same long prompt three times: by
draft and target; by the target alone while a second client asks for short answers; and with the answer and a
question behind it. Each answer is compared with that of the target alone. Exit codes: 0 success; 1 the pair
failed; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.rehearsal.checkpoints import write_checkpoint
from benchmarks.rehearsal.published import MODELS
from benchmarks.server_memory import process_memory
from build.built_pair import build_pair
from build.command_line import print_line
from build.own_pair import write_recipe
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.repository import render_recipe
from pipelines.atomic_file import remove_directory, write_whole
from pipelines.available_resources import available_bytes
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client, CompletionRequest, Timeouts
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import EngineFailedError, VerificationError
from pipelines.program import EXIT_PASS, run_program, stopped_by_signals

TARGET, DRAFT = "meta-llama/Llama-3.2-1B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"
MAX_SEQ_LEN = 32_768
BLOCK_TOKENS = 32
NUM_SHORT, NUM_TOKENS, NUM_ALONE = 64, 48, 8
QUESTION_TOKENS = 200
_PATIENCE = Timeouts(connect_s=60, read_s=3600, write_s=60, total_s=7200)


@dataclass(frozen=True)
class Answer:
    """An answer and its times.

    Attributes:
        ids: Output tokens.
        ttft_s: Time to the first token.
        itl_s: Mean time per further token.
        longest_pause_s: Longest time between two chunks.
        drafted: Draft tokens that the target verified.
    """

    ids: tuple[int, ...]
    ttft_s: float
    itl_s: float
    longest_pause_s: float
    drafted: int

    def times(self) -> dict[str, float | int]:
        """Return the times, ready for JSON."""
        return {
            "ttft_s": self.ttft_s,
            "itl_s": self.itl_s,
            "longest_pause_s": self.longest_pause_s,
            "drafted": self.drafted,
        }


def ask(client: Client, request: CompletionRequest, model: str) -> Answer:
    """Stream an answer and time it."""
    began_s = time.perf_counter()
    stream = client.stream(request, model)
    arrived_s = [time.perf_counter() for chunk in stream if chunk.output_ids]
    completion = stream.result()
    pauses_s = [after - before for before, after in pairwise(arrived_s)]
    return Answer(
        tuple(completion.output_ids),
        arrived_s[0] - began_s,
        (arrived_s[-1] - arrived_s[0]) / (len(completion.output_ids) - 1),
        max(pauses_s, default=0.0),
        sum(completion.drafted_per_round),
    )


@contextmanager
def asked_beside(url: str, model: str) -> Iterator[list[Answer]]:
    """Ask for one short answer after the other until the block ends, which gets those that were complete.

    Raises:
        DraftproofError: A request failed.
        VerificationError: No answer was complete when the block ended.
    """
    answers: list[Answer] = []
    ended = threading.Event()

    def work() -> None:
        with Client.connect(url, _PATIENCE) as client:
            while not ended.is_set():
                answer = ask(client, prompt_of(len(answers) + 1000, NUM_SHORT), model)
                if not ended.is_set():
                    answers.append(answer)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(work)
        try:
            yield answers
        finally:
            ended.set()
        asking.result()
    if not answers:
        raise VerificationError(
            "no short answer was complete beside the long prompt",
            values="0 answers",
            limit="at least one",
            remedy="give a longer prompt with --num-prompt-tokens",
        )


def prompt_of(seed: int, num_tokens: int) -> CompletionRequest:
    """Return a greedy request with made-up tokens, which no other seed's prompt begins with."""
    ids = tuple((7 * index + 131 * seed) % 20_000 + 1 for index in range(num_tokens))
    return CompletionRequest(prompt_ids=ids, max_tokens=NUM_TOKENS)


def _recipe(folder: Path) -> Recipe:
    """Write both checkpoints and the recipe."""
    shapes = {"target": MODELS[TARGET], "draft": {**MODELS[DRAFT], "max_position_embeddings": MAX_SEQ_LEN}}
    words = shapes["draft"]["vocab_size"]
    for seed, (role, shape) in enumerate(shapes.items()):
        write_checkpoint(folder / role, shape, seed, words, words)
    path = folder / "long-prompt.yaml"
    write_recipe(
        str(folder / "target"), str(folder / "draft"), path, "int8", MAX_SEQ_LEN, free=available_bytes()
    )
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    for role in shapes:
        document[role]["kv_cache"] = {"num_blocks": 2 * MAX_SEQ_LEN // BLOCK_TOKENS + 8, "dtype": "float16"}
    document["target"]["attention"] = "draftproof"
    document["name"] = path.stem
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return load_recipe(path)


def measure(server: Server, num_prompt: int) -> dict[str, Any]:
    """Ask a ready server, and compare its answers.

    Args:
        server: The server.
        num_prompt: Tokens of the long prompt.

    Raises:
        EngineFailedError: An answer is not that of the target alone.
        DraftproofError: A request failed, or no short answer was complete beside the long prompt.
    """
    url = f"grpc://127.0.0.1:{server.ports.grpc}"
    prompt = prompt_of(1, num_prompt)
    with Client.connect(url, _PATIENCE) as client:
        alone = [ask(client, prompt_of(seed, NUM_SHORT), "generate") for seed in range(10, 10 + NUM_ALONE)]
        print_line("short answers: done")
        pair = ask(client, prompt, "generate")
        print_line(f"draft and target: first token after {pair.ttft_s:.0f} s")
        with asked_beside(url, "generate_target") as beside:
            target = ask(client, prompt, "generate_target")
        print_line(f"target alone: first token after {target.ttft_s:.0f} s; {len(beside)} answers beside")
        question = prompt_of(2, QUESTION_TOKENS).prompt_ids
        follow_up = replace(prompt, prompt_ids=(*prompt.prompt_ids, *pair.ids, *question))
        again = {model: ask(client, follow_up, model) for model in ("generate", "generate_target")}
        short_alone = ask(client, prompt_of(1000, NUM_SHORT), "generate")
    _check(pair, target)
    _check(again["generate"], again["generate_target"])
    _check(short_alone, beside[0])
    return {
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": NUM_TOKENS,
        "pair": pair.times(),
        "target_alone": target.times(),
        "follow_up": {model: answer.times() for model, answer in again.items()},
        "short_alone": _together(alone),
        "short_beside": _together(beside),
        "server_pss_mb": sum(each.pss for each in process_memory(server.process.pid)),
    }


def _check(answer: Answer, expected: Answer) -> None:
    if answer.ids != expected.ids:
        raise EngineFailedError(
            "an answer is not that of the target alone",
            values=f"{answer.ids[:8]}... instead of {expected.ids[:8]}...",
            limit="every answer is equal",
            remedy="report the recipe; this must not happen",
        )


def _together(answers: Sequence[Answer]) -> dict[str, float | int]:
    return {
        "num_answers": len(answers),
        "ttft_s": statistics.median(answer.ttft_s for answer in answers),
        "itl_s": statistics.median(answer.itl_s for answer in answers),
        "longest_pause_s": max(answer.longest_pause_s for answer in answers),
    }


def _measure_and_write(options: argparse.Namespace, command_line: list[str]) -> int:
    about = conditions("benchmarks.rehearsal.long_prompt", command_line)
    run = REPOSITORY_ROOT / ".run"
    run.mkdir(exist_ok=True)
    with stopped_by_signals(), tempfile.TemporaryDirectory(prefix="long-prompt-", dir=run) as folder:
        recipe = _recipe(Path(folder))
        try:
            built = build_pair(recipe, print_line)
            engines = {"target": built.target_engine, "draft": built.draft_engine}
            about["engines"] = engine_conditions(engines)
            directory = render_recipe(built.recipe, built.draft_engine, built.target_engine).parent
            with Server.start(directory, Ports.free()) as server:
                server.wait_ready(600)
                measured = measure(server, options.num_prompt_tokens)
        finally:
            for parent in ("engines", ".run"):
                remove_directory(REPOSITORY_ROOT / parent / recipe.name)
    document = {**measured, "models": {"target": TARGET, "draft": DRAFT}, "conditions": about}
    write_whole(options.output, json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return EXIT_PASS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal.long_prompt", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="result file")
    parser.add_argument("--num-prompt-tokens", type=int, default=32_000, help="(%(default)s)")
    options = parser.parse_args(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    return run_program(lambda: _measure_and_write(options, command_line))


if __name__ == "__main__":
    sys.exit(main())
