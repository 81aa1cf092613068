"""What answers the prompts of an arm: our server, or a peer's program."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.client import CompletionRequest
from pipelines.client.at_once import Job, Workers
from pipelines.errors import DraftproofError
from pipelines.peers.orders import Outcome, RunOrder
from pipelines.peers.process import PeerProcess


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt as text, for our server, and as the token ids that its tokenizer makes of it."""

    text: str
    ids: tuple[int, ...]


class Runner(Protocol):
    """Answers prompts in one way."""

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        """Answers in the order of the prompts; raises DraftproofError."""


class PeerRunner:
    """Asks a peer's program.

    Args:
        process: With its models loaded.
        end_ids: Taken off the end of an answer, because our server does not send them.
    """

    def __init__(self, process: PeerProcess, end_ids: Sequence[int]) -> None:
        self._process, self._end_ids = process, end_ids

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        """See ``Runner``."""
        order = RunOrder(tuple(prompt.ids for prompt in prompts), max_tokens, num_at_once)
        outcome = self._process.run(order)
        answers = (ids[:-1] if ids and ids[-1] in self._end_ids else ids for ids in outcome.answers)
        return Outcome(tuple(answers), outcome.seconds, outcome.wall_s)


class ServerRunner:
    """Asks our server, text in and whole answers out, as the peers answer.

    Args:
        workers: Clients of the server.
        num_draft_tokens: As in ``Arm``.
    """

    def __init__(self, workers: Workers, num_draft_tokens: int | None) -> None:
        self._workers = workers
        self._model = "generate_target" if num_draft_tokens == 0 else "generate"
        self._num_draft_tokens = num_draft_tokens or None

    def run(self, prompts: Sequence[TokenizedPrompt], max_tokens: int, num_at_once: int) -> Outcome:
        """See ``Runner``."""
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
