"""Measure two versions in pairs: start-ups in turn, then batches of requests at two running servers.

The order within each pair is random, so that what happens on the machine affects both versions alike.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection

from benchmarks.harness import generation_of
from benchmarks.streams import TIMEOUT_S, ask_stream
from benchmarks.versions.version import RunningVersion, Version
from pipelines.bench.measuring import Measurement, run_once
from pipelines.bench.plan import ADAPTIVE, Cell, ClosedLoop
from pipelines.bench.prompt_sets import PromptSet
from pipelines.bench.workers import Ask, Workers
from pipelines.client import CompletionRequest, Generation
from pipelines.deploy.ports import HOST

BEFORE, AFTER = "before", "after"
GRPC, OPENAI = PROTOCOLS = ("gRPC", "OpenAI")
LOADS = (ClosedLoop(1), ClosedLoop(8))
MAX_TOKENS = 64
_SEED = 0  # of the orders


@dataclass(frozen=True)
class Setting:
    """Protocol and load of a pair of batches."""

    protocol: str
    load: ClosedLoop

    def __str__(self) -> str:
        return f"{self.protocol}, {self.load}"


SETTINGS = tuple(Setting(protocol, load) for protocol in PROTOCOLS for load in LOADS)


@dataclass(frozen=True)
class Pair:
    """Two measurements of the same, one after the other."""

    before: Measurement
    after: Measurement


def measure_starts(
    versions: Mapping[str, Version], num_pairs: int, report: Callable[[str], None]
) -> list[tuple[float, float]]:
    """Start and stop the servers in turn; returns the start-up times before and after, in seconds."""
    times = []
    for number, order in enumerate(_orders(num_pairs)):
        start_s = {}
        for name in order:
            with versions[name].running() as server:
                start_s[name] = server.start_s
        times.append((start_s[BEFORE], start_s[AFTER]))
        report(f"start-up {number + 1}/{num_pairs}: {start_s[BEFORE]:.2f} s, {start_s[AFTER]:.2f} s")
    return times


def measure_batches(
    servers: Mapping[str, RunningVersion],
    prompt_set: PromptSet,
    num_pairs: int,
    report: Callable[[str], None],
) -> tuple[dict[Setting, list[Pair]], int]:
    """Send the same batches to both servers in turn, after a batch of each setting as a warm-up.

    Args:
        servers: The running server of each version.
        prompt_set: Enough requests for every load.
        num_pairs: Pairs of each setting.
        report: Called with a line after each pair of every setting.

    Returns:
        Setting -> its pairs in the order in which they were measured; the number of answers of the two
        versions whose texts differ.

    Raises:
        DraftproofError: A request failed.
    """
    num_workers = max(load.num_at_once for load in LOADS)
    pairs: dict[Setting, list[Pair]] = {setting: [] for setting in SETTINGS}
    num_different = 0
    with ExitStack() as stack:
        workers = {}
        for name, server in servers.items():
            port = server.ports.openai
            doors = [HTTPConnection(HOST, port, timeout=TIMEOUT_S) for _ in range(num_workers)]
            workers[name, OPENAI] = Workers([_ask_of(stack.enter_context(closing(door))) for door in doors])
            direct = Workers.connect(f"grpc://{HOST}:{server.ports.grpc}", num_workers, streaming=True)
            workers[name, GRPC] = stack.enter_context(direct)
        for number, order in enumerate(_orders(num_pairs + 1)):
            for setting in SETTINGS:
                cell = Cell(prompt_set, setting.load)
                measured = {
                    name: run_once(cell, ADAPTIVE, MAX_TOKENS, workers[name, setting.protocol], number)
                    for name in order
                }
                both = (measured[name].generations for name in (BEFORE, AFTER))
                num_different += sum(one.text != other.text for one, other in zip(*both, strict=True))
                if number:  # the first is the warm-up
                    pairs[setting].append(Pair(measured[BEFORE], measured[AFTER]))
            report(f"batches {number}/{num_pairs}" if number else "warmed up")
    return pairs, num_different


def _orders(count: int) -> Iterator[list[str]]:
    drawn = random.Random(_SEED)
    for _ in range(count):
        yield drawn.sample((BEFORE, AFTER), 2)


def _ask_of(connection: HTTPConnection) -> Ask:
    """Return a function that asks over one connection, so that little of what is measured is the client."""

    def ask(request: CompletionRequest, model: str) -> Generation:
        names = ("prompt", "max_tokens", "temperature", "seed")
        body = {name: getattr(request, name) for name in names}
        streamed = ask_stream(connection, "/v1/completions", body)
        ids = (0,) * streamed.num_tokens  # which are counted, and not asked for
        texts = {"text": streamed.text, "finish_reason": streamed.finish_reason}
        return generation_of(ids, streamed.first_s + streamed.decode_s, streamed.first_s, **texts)

    return ask
