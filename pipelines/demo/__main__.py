"""Shows the whole road: ``python -m pipelines.demo --recipe demo``, or ``make demo``.

Builds what is missing, starts Triton on free ports of this machine, has held-out prompts continued by
draft and target together and by the target alone, prints the text as it arrives, the figures and the
verdict, and stops the server. Exit codes: 0 every answer is the target's own; 1 not, or something failed;
2 wrong usage. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.client import Chunk, Client, CompletionRequest
from pipelines.command_line import (
    EXIT_FAIL,
    EXIT_INTERRUPTED,
    EXIT_PASS,
    Progress,
    whole_number,
)
from pipelines.conditions import conditions, engine_conditions
from pipelines.demo.live_text import LiveText, segments
from pipelines.demo.pairs import Pair, ask_pair
from pipelines.demo.summary import as_document, figures_of, table, verdict_of
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server
from pipelines.errors import DraftproofError, EngineBuildError, InvalidRequestError
from pipelines.prompts import HELD_OUT, Prompt, read_prompts
from pipelines.running_server import engine_directories, stopped_by_signals
from pipelines.text.vocabulary import Vocabulary

_ROOT = Path(__file__).resolve().parents[2]
SAMPLED_TEMPERATURE = 0.8
LEAST_PROMPTS = 16


@dataclass(frozen=True)
class Settings:
    """What the demonstration asks.

    Attributes:
        prompts: Held-out prompts, all continued greedily over both transports.
        num_sampled: As many of them are continued with a seed at temperature 0.8, too.
        max_tokens: Output tokens per answer at most.
    """

    prompts: tuple[Prompt, ...]
    num_sampled: int
    max_tokens: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        settings = Settings(
            read_prompts(options.prompt_file, options.prompts), options.sampled, options.max_tokens
        )
    except InvalidRequestError as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with stopped_by_signals():
            document = _demonstrate(settings, options, command_line)
    except DraftproofError as error:
        print(f"error: {error}", file=sys.stderr)
        print(json.dumps({"verdict": "fail", "error": str(error)}))
        return EXIT_FAIL
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(json.dumps(document))
    return EXIT_PASS if document["verdict"] == "pass" else EXIT_FAIL


def _demonstrate(settings: Settings, options: argparse.Namespace, command_line: list[str]) -> dict[str, Any]:
    began_s = time.monotonic()
    _say(f"1. Engines and model repository of recipe {options.recipe}")
    directory = build(options.recipe)
    built_s = time.monotonic()
    free = Ports.free()
    ports = Ports(
        options.http_port or free.http, options.grpc_port or free.grpc, options.metrics_port or free.metrics
    )
    _say(f"2. Triton on {HOST}, ports {ports.http} (HTTP), {ports.grpc} (gRPC), {ports.metrics} (metrics)")
    with Server.start(directory, ports) as server:
        server.wait_ready()
        ready_s = time.monotonic()
        _say(f"   ready after {ready_s - built_s:.1f} s")
        urls = {"grpc": f"grpc://{HOST}:{ports.grpc}", "http": f"http://{HOST}:{ports.http}"}
        with Client.connect(urls["grpc"]) as grpc_client, Client.connect(urls["http"]) as http_client:
            engine_dirs = engine_directories(grpc_client)
            context = conditions(
                "pipelines.demo",
                command_line,
                recipe=options.recipe,
                triton_version=grpc_client.server_version(),
                engines=engine_conditions(engine_dirs),
                max_tokens=settings.max_tokens,
            )
            vocabulary = Vocabulary.from_file(engine_dirs["target"] / "tokenizer.json")
            pairs = converse(settings, grpc_client, http_client, vocabulary)
        answered_s = time.monotonic()
        _say("5. Stopping the server")
    stopped_s = time.monotonic()
    figures, verdict = figures_of(pairs), verdict_of(pairs)
    _say(f"\n{len(settings.prompts)} prompts, {settings.max_tokens} tokens each, one request at a time")
    _say(table(figures))
    _say(f"\n{verdict}")
    return {
        **as_document(figures, verdict),
        "seconds": {
            "build": round(built_s - began_s, 2),
            "start": round(ready_s - built_s, 2),
            "answers": round(answered_s - ready_s, 2),
            "stop": round(stopped_s - answered_s, 2),
        },
        "conditions": context,
    }


def build(recipe: str) -> Path:
    """Build what is missing, in a process of its own; returns ``.run/<recipe>``.

    Raises:
        EngineBuildError: The build failed; its own message is on standard error.
    """
    command = [sys.executable, "-m", "build.repository", "--recipe", recipe]
    last = ""
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if last:
                _say(f"   {last}")
            last = line.rstrip("\n")
    if process.returncode != 0:
        raise EngineBuildError(
            "the engines or the repository could not be built",
            values=f"{' '.join(command[1:])} ended with {process.returncode}",
            limit="its message stands above",
            remedy="mend what it names",
        )
    return Path(json.loads(last)["model_repository"]).parent


def converse(
    settings: Settings, grpc_client: Client, http_client: Client, vocabulary: Vocabulary
) -> list[Pair]:
    """Have every prompt continued by both models over both transports, and some of them sampled."""
    live = LiveText(sys.stdout)
    progress = Progress()
    count = len(settings.prompts)
    greedy = [CompletionRequest(prompt.text, max_tokens=settings.max_tokens) for prompt in settings.prompts]
    sampled = [
        CompletionRequest(
            prompt.text, max_tokens=settings.max_tokens, temperature=SAMPLED_TEMPERATURE, seed=index
        )
        for index, prompt in enumerate(settings.prompts[: settings.num_sampled])
    ]
    for client, transport in ((grpc_client, "grpc"), (http_client, "http")):  # the first answer is slower
        ask_pair(client, settings.prompts[0], greedy[0], transport=transport, target_first=True)

    def show(chunk: Chunk) -> None:
        live.show(segments(chunk, vocabulary))

    def stream(requests: list[CompletionRequest], label: str) -> list[Pair]:
        pairs = []
        for index, (prompt, request) in enumerate(zip(settings.prompts, requests, strict=False)):
            live.begin(f"[{index + 1}/{len(requests)}] {prompt.prompt_id}{label}", prompt.text)
            pair = ask_pair(
                grpc_client, prompt, request, transport="grpc", target_first=index % 2 == 0, on_chunk=show
            )
            live.end(_one_line(pair))
            pairs.append(pair)
        return pairs

    _say(f"3. gRPC, streamed: {live.legend}")
    pairs = stream(greedy, "") + stream(sampled, f", T={SAMPLED_TEMPERATURE:g}, seeded")
    _say(f"4. HTTP, whole answers: the same {count} prompts")
    for index, (prompt, request) in enumerate(zip(settings.prompts, greedy, strict=True)):
        progress.show(f"   {index}/{count} prompts")
        pairs.append(ask_pair(http_client, prompt, request, transport="http", target_first=index % 2 == 0))
    progress.clear()
    return pairs


def _one_line(pair: Pair) -> str:
    spent = pair.speculative
    equal = "equal" if pair.divergence is None else "DIFFERENT"
    return (
        f"-- {spent.total_accepted_draft_tokens} of {spent.total_draft_tokens} draft tokens accepted, "
        f"{spent.e2e_latency_s:.2f} s, target alone {pair.target.e2e_latency_s:.2f} s, {equal}"
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.demo", description="Build, serve, generate, compare, stop."
    )
    parser.add_argument("--recipe", default="demo", help="name of a recipe, or path of a YAML file")
    parser.add_argument(
        "--prompts", type=whole_number(LEAST_PROMPTS), default=LEAST_PROMPTS, help="how many (%(default)s)"
    )
    parser.add_argument(
        "--sampled", type=whole_number(0), default=4, help="of them at T=0.8 too (%(default)s)"
    )
    parser.add_argument("--max-tokens", type=whole_number(2), default=64, help="per answer (%(default)s)")
    parser.add_argument("--prompt-file", type=Path, default=HELD_OUT, help="JSON lines with id and text")
    for port in ("http", "grpc", "metrics"):
        parser.add_argument(f"--{port}-port", type=whole_number(1), help="default: one that is free")
    return parser


if __name__ == "__main__":
    sys.exit(main())
