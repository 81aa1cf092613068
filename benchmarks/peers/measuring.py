"""Ask the arms in turn, so that other load on the machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.peers.peers import OURS, Arm
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.protocol import Outcome, RunRequest
from pipelines.bench.workers import Job, Workers
from pipelines.client import CompletionRequest
from pipelines.errors import DraftproofError

MIN_REQUESTS = 4  # per measurement, so that no single prompt dominates it


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


@dataclass(frozen=True)
class Measurement:
    """One repetition of an arm on a prompt set at one load.

    Attributes:
        arm: The arm.
        prompt_set: Name of the prompt set.
        num_at_once: Concurrent requests.
        repetition: Number of the repetition, from 0; arms are compared within a repetition.
        answers: Output token ids in the order of the prompts.
        wall_s: Time from the first request to the last answer.
    """

    arm: Arm
    prompt_set: str
    num_at_once: int
    repetition: int
    answers: tuple[tuple[int, ...], ...]
    wall_s: float

    @property
    def num_output_tokens(self) -> int:
        """Return the number of output tokens of all answers."""
        return sum(map(len, self.answers))


@dataclass(frozen=True)
class Plan:
    """Prompts, loads and repetitions to measure.

    Attributes:
        prompts: Prompts of each set, enough for the highest load.
        concurrency: Numbers of concurrent requests.
        max_tokens: Longest answer, tokens.
        repetitions: Number of repetitions of each arm.
    """

    prompts: Mapping[str, Sequence[TokenizedPrompt]]
    concurrency: tuple[int, ...]
    max_tokens: int
    repetitions: int


def num_requests(num_at_once: int) -> int:
    """Return the number of requests in one measurement: at least two per concurrent request."""
    return max(MIN_REQUESTS, 2 * num_at_once)


class Schedule:
    """Execution of a plan.

    Args:
        plan: What to measure.
        runners: Runner of each arm; arms that fail are dropped.
        on_measurement: Called with each measurement.

    Attributes:
        measurements: All measurements, in chronological order.
        first_token_s: Arm and prompt set -> seconds from a prompt that is in no cache to its first token,
            for each of its prompts.
        failures: Arm that failed -> reason.
    """

    def __init__(
        self, plan: Plan, runners: Mapping[Arm, Runner], on_measurement: Callable[[Measurement], None]
    ) -> None:
        self._plan, self._runners, self._on_measurement = plan, dict(runners), on_measurement
        self.measurements: list[Measurement] = []
        self.first_token_s: dict[tuple[Arm, str], tuple[float, ...]] = {}
        self.failures: dict[Arm, str] = {}

    def run(self) -> None:
        """Run all measurements.

        Each arm first gives one token for each prompt, one after the other. Then it answers each set at each
        load once as a warm-up, which also fills prefix caches. Within a repetition, the arms run one after
        another, and each repetition begins with another arm.

        Raises:
            DraftproofError: Our own server failed, so that there is nothing to compare with.
        """
        for prompt_set in self._plan.prompts:
            for arm in list(self._runners):
                first = self._ask(arm, prompt_set, num_requests(1), 1, 1)
                if first is not None:
                    self.first_token_s[arm, prompt_set] = first.seconds
        for num_at_once in self._plan.concurrency:
            for prompt_set in self._plan.prompts:
                for repetition in range(-1, self._plan.repetitions):
                    self._repetition(prompt_set, num_at_once, repetition)

    def _repetition(self, prompt_set: str, num_at_once: int, repetition: int) -> None:
        arms = list(self._runners)
        first = max(repetition, 0) % len(arms)
        for arm in arms[first:] + arms[:first]:
            count = num_requests(num_at_once)
            outcome = self._ask(arm, prompt_set, count, self._plan.max_tokens, num_at_once)
            if outcome is not None and repetition >= 0:
                measurement = Measurement(
                    arm, prompt_set, num_at_once, repetition, outcome.answers, outcome.wall_s
                )
                self.measurements.append(measurement)
                self._on_measurement(measurement)

    def _ask(
        self, arm: Arm, prompt_set: str, count: int, max_tokens: int, num_at_once: int
    ) -> Outcome | None:
        """Return what an arm answers to the first prompts of a set; drop it, and return None, if it fails."""
        try:
            prompts = self._plan.prompts[prompt_set][:count]
            return self._runners[arm].run(prompts, max_tokens, num_at_once)
        except DraftproofError as error:
            if arm.engine == OURS:
                raise
            self.failures[arm] = str(error)
            del self._runners[arm]
            return None
