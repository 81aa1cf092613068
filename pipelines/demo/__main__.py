"""Demonstrate the whole pipeline: ``draftproof demo``.

The command builds missing engines, starts Triton on free ports, sends prompts of every kind to the
speculative model and to the target alone, and stops the server. It prints the text as it arrives, a table by
kind, a verdict on the answers, and what the draft is worth.
Exit codes: 0 all answers are equal and draft tokens were accepted; 1 answers differ, no draft token was
accepted, or an error; 2 wrong usage. The verdict says which. With ``--json`` the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.building import build_recipe
from pipelines.client import Chunk, Client, CompletionRequest
from pipelines.command_line.chat_prompts import as_messages, last_words
from pipelines.command_line.live_text import LiveText, Segmenter
from pipelines.command_line.options import add_prompts_option, whole_number
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import fitting_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.command_line.running_server import engine_directories, known_key
from pipelines.demo.summary import Pair, as_document, ask_pair, conclusion, figures_of, table, verdict_of
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import Server, run_directory
from pipelines.errors import InvalidRequestError, RecipeError
from pipelines.program import EXIT_CODES, run_program, stopped_by_signals
from pipelines.text.vocabulary import Vocabulary

SAMPLED_TEMPERATURE = 0.8
NUM_PROMPTS = 25
_WARM_UP_TOKENS = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        prompts = choose_prompts(options.prompts, options.recipe)
        prompts.draw(options.num_prompts)
    except (InvalidRequestError, RecipeError) as error:
        parser.error(str(error))
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        shown = _demonstrate(prompts, options, command_line)
        print(f"\n{shown.closing}", flush=True)
        if options.json:
            print(json.dumps(shown.document))
        return EXIT_CODES[shown.document["verdict"]]

    return run_program(work, result={"verdict": "fail"} if options.json else None)


@dataclass(frozen=True)
class Shown:
    """What a demonstration has shown.

    Attributes:
        pairs: The answers.
        document: Figures, verdict and conditions as a JSON object.
        closing: The verdict in words.
    """

    pairs: Sequence[Pair]
    document: dict[str, Any]
    closing: str


def demonstrate(recipe: str) -> Shown:
    """Demonstrate a recipe as the command does without further options, and print all but the verdict.

    Raises:
        DraftproofError: Its prompts cannot be used, an engine cannot be built, or a request failed.
    """
    arguments = ["--recipe", recipe]
    return _demonstrate(choose_prompts(None, recipe), _parser().parse_args(arguments), arguments)


@stopped_by_signals()
def _demonstrate(prompts: Prompts, options: argparse.Namespace, command_line: list[str]) -> Shown:
    Server.check_none_runs(run_directory(options.recipe))  # its repository is rendered again
    _say(f"1. Engines and model repository of recipe {options.recipe}")
    built = build_recipe("build.repository", options.recipe, report=lambda line: _say(f"   {line}"))
    directory = Path(built["model_repository"]).parent
    ports = Ports.free()
    _say(f"2. Triton on {HOST}, ports {ports.http} (HTTP), {ports.grpc} (gRPC), {ports.metrics} (metrics)")
    with Server.start(directory, ports) as server:
        _say(f"   ready after {server.wait_ready():.1f} s")
        with known_key(directory), Client.connect(f"grpc://{HOST}:{ports.grpc}") as client:
            engine_dirs = engine_directories(client)
            asked = as_messages(prompts, engine_dirs["target"])
            used = fitting_prompts(asked, client, options.max_tokens).draw(options.num_prompts)
            for line in used.lines():
                _say(f"   {line}")
            context = conditions(
                "pipelines.demo",
                command_line,
                recipe=options.recipe,
                triton_version=client.server_version(),
                engines=engine_conditions(engine_dirs),
                prompts=used.document(),
                max_tokens=options.max_tokens,
            )
            vocabulary = Vocabulary.from_file(engine_dirs["target"] / "tokenizer.json")
            if chats := [name for name, of_set in used.sets.items() if of_set[0].messages]:
                _say(f"   sent as messages, in the model's chat template: {', '.join(chats)}")
            pairs = converse(used, options.sampled, options.max_tokens, client, vocabulary)
        _say("4. Stopping the server")
    (verdict, reason), figures = verdict_of(pairs), figures_of(pairs)
    closing = [f"{verdict.upper()}: {reason}"]
    if figures:
        _say(f"\n{table(figures)}")
        closing += [conclusion(figures)] if verdict == "pass" else []
    document = {**as_document(pairs), "conditions": context}
    return Shown(pairs, document, "\n".join(closing))


def converse(
    prompts: Prompts, num_sampled: int, max_tokens: int, client: Client, vocabulary: Vocabulary
) -> list[Pair]:
    """Send every request to both models.

    Args:
        prompts: Prompts, all of them answered greedily.
        num_sampled: How many of them are also answered at temperature 0.8 with a seed.
        max_tokens: Longest answer, tokens.
        client: Client of the server.
        vocabulary: Vocabulary of the target.
    """
    live, segmenter = LiveText(sys.stdout), Segmenter(vocabulary)

    def show(chunk: Chunk) -> None:
        live.show(segmenter.segments(chunk))

    # Of each kind, the target answers every other prompt first.
    turns = [
        (kind, prompt, (turn + place) % 2 == 0)
        for turn, of_turn in enumerate(zip_longest(*prompts.sets.values()))
        for place, (kind, prompt) in enumerate(zip(prompts.sets, of_turn, strict=True))
        if prompt is not None
    ]

    def stream(count: int, label: str, **sampling: Any) -> list[Pair]:
        pairs = []
        for index, (kind, prompt, target_first) in enumerate(turns[:count]):
            request = CompletionRequest(prompt.text, max_tokens=max_tokens, **prompt.switches)
            if sampling:
                request = replace(request, **sampling, seed=index)
            live.begin(f"[{index + 1}/{len(turns[:count])}] {prompt.prompt_id}{label}", last_words(prompt))
            pair = ask_pair(client, prompt, kind, request, target_first=target_first, on_chunk=show)
            live.end(_one_line(pair))
            pairs.append(pair)
        return pairs

    kind, prompt, _ = turns[0]
    warm_up = CompletionRequest(prompt.text, max_tokens=min(max_tokens, _WARM_UP_TOKENS), **prompt.switches)
    ask_pair(client, prompt, kind, warm_up, target_first=True)  # the first answer is slower
    _say(f"3. Answers, streamed: {live.legend}")
    greedy = stream(len(turns), "")
    label = f", T={SAMPLED_TEMPERATURE:g}, seeded"
    return greedy + stream(num_sampled, label, temperature=SAMPLED_TEMPERATURE)


def _one_line(pair: Pair) -> str:
    spent = pair.speculative
    equal = "equal" if pair.difference is None else "DIFFERENT"
    return (
        f"-- {spent.total_accepted_draft_tokens} of {spent.total_draft_tokens} draft tokens accepted, "
        f"{spent.e2e_latency_s:.2f} s, target alone {pair.target.e2e_latency_s:.2f} s, {equal}"
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="draftproof demo", description="Build, serve, generate and compare."
    )
    parser.add_argument("--recipe", default="demo", help="name or YAML file of a recipe (%(default)s)")
    parser.add_argument(
        "--num-prompts",
        type=whole_number(1),
        default=NUM_PROMPTS,
        help="most prompts, the same number of each kind (%(default)s)",
    )
    parser.add_argument(
        "--sampled",
        type=whole_number(0),
        default=4,
        help="how many of them are also sampled at T=0.8 (%(default)s)",
    )
    parser.add_argument(
        "--max-tokens", type=whole_number(2), default=48, help="tokens per answer (%(default)s)"
    )
    add_prompts_option(parser)
    parser.add_argument("--json", action="store_true", help="print the result as the last line, JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
