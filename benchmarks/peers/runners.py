"""Run the prompts of an arm on our server or on a peer's program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers.messages import Outcome, RunRequest
from benchmarks.peers.process import PeerProcess
from pipelines.client import CompletionRequest
from pipelines.client.workers import Job, Workers
from pipelines.errors import DraftproofError


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt as text, for our server, and as token ids, for peers."""

    text: str
    ids: tuple[int, ...]


class Runner(Protocol):
    """An arm that can answer prompts."""

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        """Answer prompts, and return the answers in the same order; raises DraftproofError."""


class PeerRunner:
    """Runner for a peer's program.

    Args:
        process: The program, with its models loaded.
        end_ids: End tokens to remove from answers, because our server does not return them.
    """

    def __init__(self, process: PeerProcess, end_ids: Sequence[int]) -> None:
        self._process, self._end_ids = process, end_ids

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        """Answer prompts; see ``Runner``."""
        request = RunRequest(tuple(prompt.ids for prompt in prompts), max_tokens, num_at_once)
        outcome = self._process.run(request)
        answers = (ids[:-1] if ids and ids[-1] in self._end_ids else ids for ids in outcome.answers)
        return Outcome(tuple(answers), outcome.seconds, outcome.wall_s)


class ServerRunner:
    """Runner for our server, with text prompts and without streaming.

    Args:
        workers: Clients of the server.
        num_draft_tokens: See ``Arm``.
    """

    def __init__(self, workers: Workers, num_draft_tokens: int | None) -> None:
        self._workers = workers
        self._model = "generate_target" if num_draft_tokens == 0 else "generate"
        self._num_draft_tokens = num_draft_tokens or None

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        """Answer prompts; see ``Runner``."""
        jobs = [
            Job(
                CompletionRequest(
                    prompt.text, max_tokens=max_tokens, num_draft_tokens=self._num_draft_tokens
                ),
                self._model,
            )
            for prompt in prompts
        ]
        started_s = time.monotonic()
        answers = self._workers.run(jobs, num_at_once)
        wall_s = time.monotonic() - started_s
        generations = []
        for answer in answers:
            if isinstance(answer, DraftproofError):
                raise answer
            generations.append(answer)
        return Outcome(
            tuple(generation.output_ids for generation in generations),
            tuple(generation.e2e_latency_s for generation in generations),
            wall_s,
        )
