"""The main loop of a peer's program, which processes requests from stdin.

This module uses only the standard library, because the interpreters of peers import it.
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

from benchmarks.peers.messages import Loaded, LoadRequest, Outcome, RunRequest, read_request


class LoadedPeer(Protocol):
    """An engine with its models in memory."""

    loaded: Loaded

    def run(self, request: RunRequest) -> Outcome:
        """Answer prompts."""


class SteppedEngine(Protocol):
    """An engine that batches requests itself and is called once per step."""

    def add(self, index: int, prompt: tuple[int, ...], max_tokens: int) -> None:
        """Add a request."""

    def step(self) -> Iterable[tuple[int, list[int]]]:
        """Run one step, and return (index, output ids) of each request that has ended."""


def run_stepped(engine: SteppedEngine, request: RunRequest) -> Outcome:
    """Answer prompts in a closed loop: when one request ends, the next begins."""
    answers: list[tuple[int, ...]] = [()] * len(request.prompts)
    begun_s = [0.0] * len(request.prompts)
    seconds = [0.0] * len(request.prompts)
    started_s = time.monotonic()
    waiting = iter(range(len(request.prompts)))
    num_running = 0
    while True:
        while num_running < request.num_at_once and (index := next(waiting, None)) is not None:
            begun_s[index] = time.monotonic()
            engine.add(index, request.prompts[index], request.max_tokens)
            num_running += 1
        if not num_running:
            break
        for index, output_ids in engine.step():
            answers[index] = tuple(output_ids)
            seconds[index] = time.monotonic() - begun_s[index]
            num_running -= 1
    return Outcome(tuple(answers), tuple(seconds), time.monotonic() - started_s)


def serve(load: Callable[[LoadRequest], LoadedPeer]) -> int:
    """Process requests from stdin until it is closed, and return the exit code."""
    # Redirect stdout to stderr, because libraries print to it.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return process_requests(load, sys.stdin, answers)


def process_requests(load: Callable[[LoadRequest], LoadedPeer], lines: Iterable[str], answers: TextIO) -> int:
    """Process requests from a stream, like ``serve``."""
    peer: LoadedPeer | None = None
    for line in lines:
        try:
            request = read_request(line)
            answer: dict[str, Any]
            if isinstance(request, LoadRequest):
                peer = load(request)
                answer = dataclasses.asdict(peer.loaded)
            elif peer is None:
                answer = {"error": "no models are loaded"}
            else:
                answer = dataclasses.asdict(peer.run(request))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0
