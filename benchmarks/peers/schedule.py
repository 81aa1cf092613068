"""Alternate between the arms, so that other load on the machine affects all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.peers import OURS, Arm
from benchmarks.peers.runners import Runner, TokenizedPrompt
from pipelines.errors import DraftproofError

MIN_REQUESTS = 4  # per measurement, so that no single prompt dominates it


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
        max_concurrency: Most concurrent requests of each engine with a limit.
    """

    prompts: Mapping[str, Sequence[TokenizedPrompt]]
    concurrency: tuple[int, ...]
    max_tokens: int
    repetitions: int
    max_concurrency: Mapping[str, int]


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
        failures: Arm that failed -> reason.
    """

    def __init__(
        self, plan: Plan, runners: Mapping[Arm, Runner], on_measurement: Callable[[Measurement], None]
    ) -> None:
        self._plan, self._runners, self._on_measurement = plan, dict(runners), on_measurement
        self.measurements: list[Measurement] = []
        self.failures: dict[Arm, str] = {}

    def run(self) -> None:
        """Run all measurements.

        Each arm first answers each set at each load once as a warm-up, which also fills prefix caches. Within
        a repetition, the arms run one after another, and each repetition begins with another arm.

        Raises:
            DraftproofError: Our own server failed, so that there is nothing to compare with.
        """
        for num_at_once in self._plan.concurrency:
            for prompt_set in self._plan.prompts:
                for repetition in range(-1, self._plan.repetitions):
                    self._repetition(prompt_set, num_at_once, repetition)

    def _repetition(self, prompt_set: str, num_at_once: int, repetition: int) -> None:
        limits = self._plan.max_concurrency
        arms = [arm for arm in self._runners if num_at_once <= limits.get(arm.engine, num_at_once)]
        first = max(repetition, 0) % len(arms)
        for arm in arms[first:] + arms[:first]:
            prompts = self._plan.prompts[prompt_set][: num_requests(num_at_once)]
            try:
                outcome = self._runners[arm].run(prompts, self._plan.max_tokens, num_at_once)
            except DraftproofError as error:
                if arm.engine == OURS:
                    raise
                self.failures[arm] = str(error)
                del self._runners[arm]
                continue
            if repetition >= 0:
                measurement = Measurement(
                    arm, prompt_set, num_at_once, repetition, outcome.answers, outcome.wall_s
                )
                self.measurements.append(measurement)
                self._on_measurement(measurement)
