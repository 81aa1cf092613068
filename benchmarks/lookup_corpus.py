"""Measure what a corpus for lookups gains where answers are in it, and costs where they are not.

``python -m benchmarks.lookup_corpus --recipe demo-large`` asks the target for answers and gives the server a
corpus of these and of Python's standard library. Then it sends three kinds of requests, with and without the
corpus in turn, one at a time: the same prompts, the same without their beginning, and other prompts. The last
line of standard output is JSON. Exit codes: 0 success; 1 a request failed or answers differ; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.one_server import drawn_prompts, server_conditions
from pipelines.bench.report.blocks import Blocks, Interval
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.command_line.given_prompts import add_prompts_option
from pipelines.command_line.options import whole_number
from pipelines.command_line.running_server import running_server
from pipelines.deploy.live_settings.lookup_corpus import CORPUS_FILES, set_lookup_corpus
from pipelines.deploy.server import run_directory
from pipelines.errors import InvalidRequestError
from pipelines.program import EXIT_FAIL, EXIT_PASS, run_program
from pipelines.speculation.lookup.corpus import Corpus

NUM_PROMPTS = 16
NUM_CUT = 8  # characters
MAX_TOKENS = 96
READING_S = 1.0  # in which the server has read the corpus, on a thread that would slow a request down
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True)
class Gain:
    """Requests of one kind with the corpus, compared with those without.

    Attributes:
        kind: What was asked.
        speed_ratio: Output tokens per second.
        rounds_ratio: Passes of the target.
    """

    kind: str
    speed_ratio: Interval
    rounds_ratio: float


@dataclass(frozen=True)
class CorpusGains:
    """Gains by a corpus.

    Attributes:
        num_tokens: Tokens of the corpus.
        index_s: Time to tokenize and index it, seconds.
        gains: All kinds of requests.
        num_different: Answers that are not those of the target alone.
    """

    num_tokens: int
    index_s: float
    gains: tuple[Gain, ...]
    num_different: int


class _Arm:
    """Answers with or without the corpus."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._tokens: defaultdict[int, int] = defaultdict(int)  # by repetition
        self._seconds: defaultdict[int, float] = defaultdict(float)

    @property
    def speeds(self) -> list[float]:
        """Output tokens per second of each repetition."""
        return [num_tokens / self._seconds[number] for number, num_tokens in self._tokens.items()]

    def add(self, repetition: int, answer: Generation) -> None:
        self.num_rounds += answer.num_rounds
        self._tokens[repetition] += answer.num_output_tokens
        self._seconds[repetition] += answer.e2e_latency_s


def measure_gains(
    client: Client, directory: Path, prompts: Sequence[CompletionRequest], repetitions: int
) -> CorpusGains:
    """Send requests with and without a corpus, in turn.

    Args:
        client: Client of the server.
        directory: Run directory of the server.
        prompts: Those that are asked before, then other ones; ``NUM_PROMPTS`` each.
        repetitions: Number of repetitions, at least 2.

    Raises:
        DraftproofError: A request failed.
    """
    known, unknown = prompts[:NUM_PROMPTS], prompts[NUM_PROMPTS:]
    kinds = {
        "asked before": list(known),
        f"asked before, now without their first {NUM_CUT} characters": [
            replace(request, prompt=request.prompt[NUM_CUT:]) for request in known
        ],
        "other prompts": list(unknown),
    }
    measured = {kind: {True: _Arm(), False: _Arm()} for kind in kinds}
    num_different = 0
    try:
        index_s = _set_corpus(client, directory, known)
        (path,) = directory.glob(CORPUS_FILES)
        num_tokens = Corpus.read(path, vocab_size=1 << 30).num_tokens
        for kind, requests in kinds.items():
            for number, request in enumerate(requests):
                expected = client.generate(request, "generate_target").output_ids
                for repetition in range(repetitions):
                    for has_corpus in (True, False) if (repetition + number) % 2 else (False, True):
                        with nullcontext() if has_corpus else _hidden(path):
                            client.generate(replace(request, max_tokens=1))  # the server notices the change
                            time.sleep(READING_S)
                            answer = client.stream(request).result()
                        measured[kind][has_corpus].add(repetition, answer)
                        num_different += tuple(answer.output_ids) != tuple(expected)
    finally:
        set_lookup_corpus(directory, [], lambda line: None)
    gains = [
        Gain(
            kind,
            Blocks({has: arm.speeds for has, arm in arms.items()}).ratio(True, False),
            arms[True].num_rounds / arms[False].num_rounds,
        )
        for kind, arms in measured.items()
    ]
    return CorpusGains(num_tokens, index_s, tuple(gains), num_different)


def _set_corpus(client: Client, directory: Path, known: Sequence[CompletionRequest]) -> float:
    """Give the server a corpus that has these prompts with their answers; return how long indexing took."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.jsonl"
        texts = [request.prompt + client.generate(request, "generate_target").text for request in known]
        answers.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        started_s = time.monotonic()
        paths = [answers, *STANDARD_LIBRARY.glob("*.py")]
        set_lookup_corpus(directory, paths, lambda line: print(line, file=sys.stderr))
        return time.monotonic() - started_s


@contextmanager
def _hidden(path: Path) -> Iterator[None]:
    """Move a file away meanwhile."""
    elsewhere = path.with_suffix(".hidden")
    path.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parse(arguments)
    command_line = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        prompts, prompt_set = drawn_prompts(options, 2 * NUM_PROMPTS)
        requests = [replace(request, max_tokens=MAX_TOKENS) for request in prompt_set.requests]
        if found := list(run_directory(options.recipe).glob(CORPUS_FILES)):
            raise InvalidRequestError(
                "the recipe's server has a corpus",
                values=", ".join(map(str, found)),
                limit="a server without one, because this measurement replaces and removes it",
                remedy="remove it with 'draftproof lookup-corpus', without files",
            )
        with running_server("", options.recipe) as url, Client.connect(url) as client:
            context = server_conditions(
                "benchmarks.lookup_corpus", command_line, options.recipe, url, prompts
            )
            gains = measure_gains(client, run_directory(options.recipe), requests, options.repetitions)
        sizes = {
            "max_tokens": MAX_TOKENS,
            "num_prompts": NUM_PROMPTS,
            "repetitions": options.repetitions,
        }
        document = {**sizes, **asdict(gains), "conditions": context}
        print(json.dumps(document))
        return EXIT_FAIL if gains.num_different else EXIT_PASS

    return run_program(work)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookup_corpus", description=__doc__)
    parser.add_argument("--recipe", default="demo", help="recipe of the server to start (%(default)s)")
    add_prompts_option(parser)
    parser.add_argument(
        "--repetitions", type=whole_number(2), default=3, help="repetitions of every prompt (%(default)s)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
