"""The loop of every peer's program: reads orders, carries them out, writes answers.

Runs in the peer's own interpreter; standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TextIO

from pipelines.peers.orders import Loaded, LoadOrder, Outcome, RunOrder, read_order


class LoadedPeer(Protocol):
    """An engine with its models in memory."""

    loaded: Loaded

    def run(self, order: RunOrder) -> Outcome:
        """Answer prompts."""


class SteppedEngine(Protocol):
    """An engine that batches requests by itself and is driven step by step."""

    def add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        """Take a request."""

    def step(self) -> Iterable[tuple[int, list[int]]]:
        """Compute once; (index, output ids) of each request that ended in this step."""


def run_stepped(engine: SteppedEngine, order: RunOrder) -> Outcome:
    """Answer prompts in a closed loop: when a request ends, the next begins."""
    answers: list[tuple[int, ...]] = [()] * len(order.prompts)
    begun_s = [0.0] * len(order.prompts)
    seconds = [0.0] * len(order.prompts)
    started_s = time.monotonic()
    waiting = iter(range(len(order.prompts)))
    num_running = 0
    while True:
        while num_running < order.num_at_once and (index := next(waiting, None)) is not None:
            begun_s[index] = time.monotonic()
            engine.add(index, order.prompts[index], order.max_tokens)
            num_running += 1
        if not num_running:
            break
        for index, output_ids in engine.step():
            answers[index] = tuple(output_ids)
            seconds[index] = time.monotonic() - begun_s[index]
            num_running -= 1
    return Outcome(tuple(answers), tuple(seconds), time.monotonic() - started_s)


def serve(load: Callable[[LoadOrder], LoadedPeer]) -> int:
    """Carry out orders from stdin until it ends; returns the exit code."""
    # Libraries print as they like: what they write to stdout goes to stderr, the log.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answer_orders(load, sys.stdin, answers)


def answer_orders(load: Callable[[LoadOrder], LoadedPeer], orders: Iterable[str], answers: TextIO) -> int:
    """As ``serve``, for given streams."""
    peer: LoadedPeer | None = None
    for line in orders:
        try:
            order = read_order(line)
            answer: dict[str, Any]
            if isinstance(order, LoadOrder):
                peer = load(order)
                answer = dataclasses.asdict(peer.loaded)
            elif peer is None:
                answer = {"error": "nothing is loaded yet"}
            else:
                answer = dataclasses.asdict(peer.run(order))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0
