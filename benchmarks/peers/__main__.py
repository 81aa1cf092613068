"""Compare our server with llama.cpp's and with ik_llama.cpp, with and without speculation.

``python -m benchmarks.peers --recipe qwen2-5-coder-cpu --concurrency 1,4``

All answer the same prompts from the same GGUF files on the same cores, in turn in one run, so that other
load on the machine affects them alike. Exit codes: 0 success; 1 our server failed or its answers differ; 2
wrong usage; 3 another engine could not be measured.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

from benchmarks.harness import Result, parser_of, run_benchmark, say
from benchmarks.peers.environment import ensure_environment
from benchmarks.peers.figures import (
    IK_LLAMA_CPP,
    LLAMA_CPP,
    OURS,
    documents,
    engine_of,
    first_token_table,
    name_of,
    table,
)
from benchmarks.peers.llama_cpp import IK_SERVER, SERVER, LlamaCpp, Settings, gguf_files
from build.recipe import load_recipe
from pipelines.bench.figures import figures_of
from pipelines.bench.measuring import Ask, Measurement, run_once
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm, Cell, requests_needed
from pipelines.bench.prompt_sets import PromptSet, draw_sets, names_of_sets
from pipelines.bench.reporting.conditions import conditions, engine_conditions
from pipelines.client import Client, CompletionRequest
from pipelines.command_line.options import whole_number, whole_numbers
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_lengths import encode_prompts, fitting_prompts, read_tokenizer
from pipelines.command_line.running_server import engine_directories, running_server
from pipelines.deploy.server import run_directory
from pipelines.errors import DraftproofError
from pipelines.program import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS

PROGRAMS = {LLAMA_CPP: SERVER, IK_LLAMA_CPP: IK_SERVER}
ARMS = (*(Arm(LLAMA_CPP, length) for length in (0, 2, 4)), Arm(IK_LLAMA_CPP, 0))
_TITLES = {
    OURS: "Draftproof, through Triton",
    LLAMA_CPP: "llama.cpp, its server",
    IK_LLAMA_CPP: "ik_llama.cpp, its Python package",
}
_METHOD = (
    "greedy, not streamed; our server over gRPC, the others over HTTP; except for first tokens, prompts are "
    "in the prefix caches of all; ik_llama.cpp answers one request after the other, "
    "without flash attention and speculation"
)


@dataclass
class Measured:
    """What was measured.

    Attributes:
        asks: How each arm that has not failed is asked.
        measurements: All measurements, in chronological order.
        first_token_s: Arm and prompt set -> seconds from a prompt that is in no cache to its first token, for
            each of its prompts.
        failures: Arm of another engine that failed -> reason.
    """

    asks: dict[Arm, Ask] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    first_token_s: dict[tuple[Arm, str], tuple[float, ...]] = field(default_factory=dict)
    failures: dict[Arm, str] = field(default_factory=dict)

    def ask(self, cell: Cell, arm: Arm, max_tokens: int, repetition: int = -1) -> Measurement | None:
        """Measure an arm once; an arm of another engine that fails is dropped, with None."""
        try:
            return run_once(cell, arm, max_tokens, self.asks[arm], repetition)
        except DraftproofError as error:
            if engine_of(arm) == OURS:
                raise
            self.failures[arm] = str(error)
            del self.asks[arm]
            return None

    def run(
        self, sets: Sequence[PromptSet], concurrency: Sequence[int], max_tokens: int, repetitions: int
    ) -> None:
        """Run all measurements.

        Each arm first gives one token for each prompt, one after the other, with a salt: our arms have one
        prompt cache, which outlives the server. Then it answers each set at each
        load once as a warm-up, which also fills prefix caches. Within a repetition, the arms run one after
        another, and each repetition begins with another arm.

        Raises:
            DraftproofError: Our own server failed, so that there is nothing to compare with.
        """
        for prompt_set in sets:
            for arm in list(self.asks):
                salt = secrets.token_hex(8)
                new = [replace(request, cache_salt=salt) for request in prompt_set.requests]
                if first := self.ask(Cell(PromptSet(prompt_set.name, tuple(new)), 1), arm, 1):
                    times_s = tuple(each.e2e_latency_s for each in first.generations)
                    self.first_token_s[arm, prompt_set.name] = times_s
        for num_at_once in concurrency:
            for prompt_set in sets:
                cell = Cell(prompt_set, num_at_once)
                for repetition in range(-1, repetitions):
                    arms = list(self.asks)
                    begin = max(repetition, 0) % len(arms)
                    for arm in arms[begin:] + arms[:begin]:
                        entry = self.ask(cell, arm, max_tokens, repetition)
                        if entry is not None and repetition >= 0:
                            self.measurements.append(entry)
                            rate = f"{entry.output_tokens_per_s:.1f} tokens/s"
                            say(f"{cell}, repetition {repetition + 1}, {name_of(arm)}: {rate}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_benchmark(_parser(), _compare, arguments)


def _compare(options: argparse.Namespace, command_line: list[str]) -> Result:
    recipe, most = load_recipe(options.recipe), max(options.concurrency)
    files = gguf_files(recipe)
    prompts, count = choose_prompts(options.prompts, options.recipe), requests_needed(most)
    names = names_of_sets(prompts, options.prompt_sets, is_quick=False)
    draw_sets(prompts, names, count)  # too few are an error before anything is started
    measured, versions = Measured(), dict[str, str]()
    with ExitStack() as stack:
        url = stack.enter_context(running_server("", options.recipe))
        client = stack.enter_context(Client.connect(url))
        directories = engine_directories(client)
        drawn = draw_sets(fitting_prompts(prompts, client, options.max_tokens), names, count)
        measured.asks |= {TARGET_ALONE: client.generate, ADAPTIVE: client.generate}
        engine = json.loads((directories["target"] / "engine.json").read_text(encoding="utf-8"))
        sizes = engine["num_threads"], most, recipe.serving.max_seq_len
        for arm in ARMS:
            name, length = engine_of(arm), arm.num_draft_tokens
            assert length is not None
            log = run_directory(options.recipe) / f"{name}-{length}.log"
            settings = Settings(files["target"], files["draft"], length, *sizes)
            say(f"{name_of(arm)}: loading")
            try:
                end_ids = tuple(engine["end_ids"])
                server = LlamaCpp(ensure_environment(name), settings, end_ids, log, PROGRAMS[name])
            except DraftproofError as error:
                measured.failures[arm] = str(error)
                continue
            stack.enter_context(closing(server))
            measured.asks[arm] = server.ask
            versions[name] = server.version
        about = conditions(
            "benchmarks.peers",
            command_line,
            recipe=options.recipe,
            triton_version=client.server_version(),
            engines=engine_conditions(directories),
            prompts=drawn.document(),
            peers={name: {"title": _TITLES[name], "version": versions.get(name, "")} for name in PROGRAMS},
            method=_METHOD,
        )
        ids = encode_prompts(drawn.all, read_tokenizer(directories["target"]))
        sets = [
            PromptSet(name, tuple(CompletionRequest(prompt_ids=ids[each.prompt_id]) for each in of_set))
            for name, of_set in drawn.sets.items()
        ]
        measured.run(sets, options.concurrency, options.max_tokens, options.repetitions)
    return _result(measured, options, about)


def _result(measured: Measured, options: argparse.Namespace, about: Mapping[str, object]) -> Result:
    whole = [entry for entry in measured.measurements if entry.arm in measured.asks]
    cells = figures_of(whole, tuple(measured.asks))
    failures = {name_of(arm): why for arm, why in measured.failures.items()}
    lines = [
        table(cells, _TITLES),
        "",
        first_token_table(measured.first_token_s, _TITLES),
        "",
        "Medians of output tokens/s: target alone -> speculating, at the engine's best draft length. Bold: "
        "how many times as fast Draftproof is as the faster of these, with a 95 % interval. "
        f"{options.repetitions} repetitions in turn, at most {options.max_tokens} tokens; {_METHOD}.",
        *(f"Not measured: {name}: {reason}" for name, reason in failures.items()),
    ]
    arms = [document for figures in cells for document in documents(figures)]
    document = {
        "arms": arms,
        "first_token_s": [
            {"arm": name_of(arm), "prompt_set": prompt_set, "seconds": seconds}
            for (arm, prompt_set), seconds in measured.first_token_s.items()
        ],
        "not_measured": failures,
        "max_tokens": options.max_tokens,
        "repetitions": options.repetitions,
        "conditions": dict(about),
    }
    is_wrong = any(each["num_different"] for each in arms if each["engine"] == OURS)
    exit_code = EXIT_FAIL if is_wrong else EXIT_INCONCLUSIVE if failures else EXIT_PASS
    return Result("\n".join(lines), document, exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "benchmarks.peers", "Compare our server with llama.cpp's and ik_llama.cpp.", "qwen2-5-coder-cpu"
    )
    parser.add_argument(
        "--prompt-sets",
        type=lambda text: tuple(dict.fromkeys(text.split(","))),
        help="names of files of the prompts (default: all)",
    )
    parser.add_argument("--concurrency", type=whole_numbers(1), default=(1, 8), help="default: 1,8")
    parser.add_argument("--max-tokens", type=whole_number(2), default=128, help="per answer (%(default)s)")
    parser.add_argument("--repetitions", type=whole_number(2), default=3, help="of each arm (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
