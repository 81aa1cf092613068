"""Measure two versions in pairs: start-ups in turn, then batches of requests at two running servers.

The order within each pair is random, so that what happens on the machine affects both versions alike.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection

from benchmarks.harness import num_different_texts
from benchmarks.versions.version import RunningVersion, Version
from pipelines.bench.measuring import Measurement, run_once
from pipelines.bench.plan import ADAPTIVE, Cell, ClosedLoop
from pipelines.bench.prompt_sets import PromptSet
from pipelines.bench.workers import Workers
from pipelines.client import CompletionRequest, Generation
from pipelines.deploy.ports import HOST
from pipelines.errors import VerificationError
from pipelines.openai_stream import AnswerReader, Choice, UnreadableError

BEFORE, AFTER = "before", "after"
GRPC, OPENAI = PROTOCOLS = ("gRPC", "OpenAI")
LOADS = (ClosedLoop(1), ClosedLoop(8))
MAX_TOKENS = 64
_SEED = 0  # of the orders
_TIMEOUT_S = 600.0  # for a chunk of an answer


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
            doors = [_Door(server.ports.openai) for _ in range(num_workers)]
            workers[name, OPENAI] = Workers([stack.enter_context(closing(door)).ask for door in doors])
            direct = Workers.connect(f"grpc://{HOST}:{server.ports.grpc}", num_workers, streaming=True)
            workers[name, GRPC] = stack.enter_context(direct)
        for number, order in enumerate(_orders(num_pairs + 1)):
            for setting in SETTINGS:
                cell = Cell(prompt_set, setting.load)
                measured = {
                    name: run_once(cell, ADAPTIVE, MAX_TOKENS, workers[name, setting.protocol], number)
                    for name in order
                }
                num_different += num_different_texts(measured[BEFORE], measured[AFTER])
                if number:  # the first is the warm-up
                    pairs[setting].append(Pair(measured[BEFORE], measured[AFTER]))
            report(f"batches {number}/{num_pairs}" if number else "warmed up")
    return pairs, num_different


def _orders(count: int) -> Iterator[list[str]]:
    drawn = random.Random(_SEED)
    for _ in range(count):
        yield drawn.sample((BEFORE, AFTER), 2)


class _Door:
    """Streams completions over one connection, so that little of what is measured is the client."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def ask(self, request: CompletionRequest, model: str) -> Generation:
        """Send a request and read its events; tokens are counted, but their ids are not asked for.

        Raises:
            VerificationError: The response is no complete stream.
        """
        body = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Content-Type": "application/json"}
        sent_at_s = time.monotonic()
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise _no_answer(f"HTTP status {response.status}: {response.read()[:500]!r}")
        choice, num_tokens = Choice(), 0
        arrivals_s: list[float] = []
        reader = AnswerReader(is_stream=True)
        try:
            while data := response.read1():  # to the end, after which the connection can be used again
                for event in reader.read(data):
                    if event.error:
                        raise _no_answer(event.error)
                    num_tokens = event.num_tokens or num_tokens
                    for delta in event.deltas:
                        arrivals_s.append(time.monotonic())
                        choice.add(delta)
            list(reader.end())
        except UnreadableError as error:
            raise _no_answer(str(error)) from None
        if not choice.finish_reason or not num_tokens:
            raise _no_answer(f"finish_reason={choice.finish_reason!r}, {num_tokens} tokens")
        return Generation(
            text=choice.text(),
            output_ids=(0,) * num_tokens,
            accepted_mask=(),
            finish_reason=choice.finish_reason,
            num_rounds=0,
            total_draft_tokens=0,
            total_accepted_draft_tokens=0,
            accepted_per_position=(),
            ttft_s=arrivals_s[0] - sent_at_s,
            e2e_latency_s=arrivals_s[-1] - sent_at_s,
        )


def _no_answer(why: str) -> VerificationError:
    return VerificationError(f"the front door did not answer a request: {why}", "read the server's log")
