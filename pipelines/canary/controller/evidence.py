"""Collect the evidence of a rollout: requests from the router's log, samples of the processes, judgement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipelines.canary.controller.rollout import Progress, Rollout
from pipelines.canary.controller.world import World
from pipelines.canary.judge.pairing import count_pairs
from pipelines.canary.judge.resources import Sample
from pipelines.canary.judge.verdict import Analysis, analyse
from pipelines.errors import CanaryError
from pipelines.router.observation import Observation

_MOST_SAMPLES = 500  # over a whole rollout; samples of its first minutes are closer together


@dataclass(frozen=True)
class Collected:
    """Findings of one cycle, which the state file stores together with its decision.

    Attributes:
        requests: New requests.
        samples: New samples.
    """

    requests: Sequence[Observation] = ()
    samples: Sequence[Sample] = ()


class Evidence:
    """The evidence of one rollout so far.

    Attributes:
        analysis: Latest analysis; None without requests.
        num_pairs: Requests of clients in it that are compared with one of the stable pair.
        num_replays: Replays in it, likewise.
        broken: Why requests cannot be read; "" if they can.
        not_sampled: Why the latest sample could not be taken; "" if it could.

    Args:
        rollout: The rollout.
        requests: Requests from the state file.
        samples: Samples from the state file.
        clock: Returns the unix time.
    """

    def __init__(
        self,
        rollout: Rollout,
        requests: Sequence[Observation],
        samples: Sequence[Sample],
        clock: Callable[[], float],
    ) -> None:
        self.analysis: Analysis | None = None
        self.num_pairs = self.num_replays = 0
        self.broken = ""
        self.not_sampled = ""
        self._rollout = rollout
        self._requests = list(requests)
        self._samples = list(samples)
        self._clock = clock
        self._sampled_at_s = clock()
        self._complete_until_s = 0.0
        self._analysed = (0, -1)  # numbers of complete requests and of samples

    @property
    def requests(self) -> list[Observation]:
        """Requests without gaps (``analyse``)."""
        return [each for each in self._requests if each.arrived_at_s < self._complete_until_s]

    def collect(self, world: World, progress: Progress) -> tuple[Collected, Progress]:
        """Read what is new and judge again; returns it with the progress of reading."""
        self.broken = ""
        is_judged = progress.position.is_judged
        found = Collected()
        if is_judged:
            try:
                found, progress = self._read_log(world, progress)
            except CanaryError as error:
                self.broken = str(error)
        self._requests += found.requests
        self._complete_until_s = progress.complete_until_s
        samples = self._sample(world, is_wanted=is_judged and self._rollout.limits.judges_resources)
        if not self.broken:
            self._analyse()
        return replace(found, samples=samples), progress

    def unmeasured_for(self, seconds: float) -> str:
        """Return why no sample could be taken for longer than ``seconds``; "" if one could."""
        return self.not_sampled if self._clock() - self._sampled_at_s > seconds else ""

    def _read_log(self, world: World, progress: Progress) -> tuple[Collected, Progress]:
        observations, offset = world.observations(progress.offset)
        rollout = self._rollout
        ours = [each for each in observations if each.canary_id == rollout.canary_id]
        requests = [found for each in ours for found in counted(each)]
        until_s = max([progress.complete_until_s, *(each.oldest_open_at_s for each in ours)])
        return Collected(requests), replace(progress, offset=offset, complete_until_s=until_s)

    def _sample(self, world: World, *, is_wanted: bool) -> Sequence[Sample]:
        now_s, taken = self._clock(), self._samples
        if not is_wanted:
            self.not_sampled, self._sampled_at_s = "", now_s
            return ()
        if taken and now_s - taken[-1].at_s < (now_s - taken[0].at_s) / _MOST_SAMPLES:
            return ()
        try:
            sample = world.sample()
        except CanaryError as error:
            self.not_sampled = str(error)
            return ()
        taken.append(sample)
        self.not_sampled, self._sampled_at_s = "", now_s
        return (sample,)

    def _analyse(self) -> None:
        """Judge again if there is new evidence."""
        rollout, complete = self._rollout, self.requests
        known = len(complete), len(self._samples)
        if known == self._analysed or not complete:
            return
        self.analysis = analyse(complete, rollout.limits, rollout.plan.slo, self._samples)
        self.num_pairs, self.num_replays = count_pairs(complete)
        self._analysed = known


def counted(observation: Observation) -> Iterator[Observation]:
    """Yield what counts of an observation: a failure of every arm that failed, else the answer.

    If an arm failed and another one answered, the answer does not count, because chance did not choose that
    arm. Nor does an answer of an arm that the client named.
    """
    if observation.overridden:
        return
    faults = itertools.chain(observation.fallback_faults, itertools.repeat(""))
    for arm, reason, fault in zip(
        observation.fallback_from, observation.fallback_reasons, faults, strict=False
    ):
        if reason == "busy":  # clients can fill a queue, so it is no failure of the arm (``router.breaker``)
            continue
        yield Observation(
            observation.canary_id,
            observation.request_id,
            arm,
            observation.arrived_at_s,
            observation.oldest_open_at_s,
            observation.band,
            failure="timeout" if reason == "timeout" else "error",
            prompt_id=observation.prompt_id,
            session_id=observation.session_id,
            is_replay=observation.is_replay,
            fault=fault,
        )
    if not observation.fallback_from:
        yield observation
