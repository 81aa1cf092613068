"""Runs the arms in turn, so that what the machine does meanwhile falls on all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.errors import DraftproofError
from pipelines.peers.peers import OURS, Arm
from pipelines.peers.runners import Runner, TokenizedPrompt

LEAST_REQUESTS = 4  # per measurement: one or two would make it the measurement of a prompt


@dataclass(frozen=True)
class Measurement:
    """One arm, one prompt set, one load, once.

    Attributes:
        arm: Which.
        prompt_set: Name of the prompts.
        num_at_once: Requests at once.
        repetition: From 0; arms are compared within one.
        answers: Output token ids in the order of the prompts.
        wall_s: From the first request to the last answer.
    """

    arm: Arm
    prompt_set: str
    num_at_once: int
    repetition: int
    answers: tuple[tuple[int, ...], ...]
    wall_s: float

    @property
    def num_output_tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        prompts: Of each set, enough for the highest load.
        concurrency: Numbers of requests at once.
        max_tokens: Output tokens per answer at most.
        repetitions: How often each arm is measured.
        most_at_once: Limits of engines that have one.
    """

    prompts: Mapping[str, Sequence[TokenizedPrompt]]
    concurrency: tuple[int, ...]
    max_tokens: int
    repetitions: int
    most_at_once: Mapping[str, int]


def num_requests(num_at_once: int) -> int:
    """Requests of one measurement: each place is taken at least twice."""
    return max(LEAST_REQUESTS, 2 * num_at_once)


class Schedule:
    """Carries a plan out.

    Args:
        plan: What is measured.
        runners: Of each arm; an arm that fails is taken out.
        on_measurement: Called after each.

    Attributes:
        measurements: In the order of time.
        failures: Reason by arm, of peers that failed.
    """

    def __init__(
        self, plan: Plan, runners: Mapping[Arm, Runner], on_measurement: Callable[[Measurement], None]
    ) -> None:
        self._plan, self._runners, self._on_measurement = plan, dict(runners), on_measurement
        self.measurements: list[Measurement] = []
        self.failures: dict[Arm, str] = {}

    def run(self) -> None:
        """Measure.

        Before the measurements of a set at a load each arm answers it once for nothing: prompt caches and
        engines are then equally warm. Within a repetition the arms follow each other, beginning with
        another one each time.

        Raises:
            DraftproofError: Our own server failed: there is nothing to compare then.
        """
        for num_at_once in self._plan.concurrency:
            for prompt_set in self._plan.prompts:
                for repetition in range(-1, self._plan.repetitions):
                    self._repetition(prompt_set, num_at_once, repetition)

    def _repetition(self, prompt_set: str, num_at_once: int, repetition: int) -> None:
        limits = self._plan.most_at_once
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
