"""The plan of a rollout, read from YAML: weights of the candidate, durations and thresholds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from pipelines import configuration
from pipelines.canary.judge.limits import Slo
from pipelines.errors import CanaryError
from pipelines.router.arms import Bands, ShadowSetting

DEFAULT = Path(__file__).with_name("canary.yaml")

_MIN_STABLE_WEIGHT = 0.01  # the candidate is compared with these requests
_REMEDY = "correct the plan; the rollout was not started"


@dataclass(frozen=True)
class Shadow:
    """The shadow phase, in which the candidate replays requests of the stable pair and no client sees it.

    Attributes:
        share: Largest share of the requests that is replayed; see ``Plan.replayed_share``.
        max_per_s: Largest number of replays that start per second.
        max_in_flight: Largest number of concurrent replays.
        max_queue: Largest number of replays that wait.
        min_pairs: Least number of replays before the phase ends.
        bake_s: Least duration of the phase in seconds.
    """

    share: Annotated[float, Field(gt=0, le=1)]
    max_per_s: PositiveFloat
    max_in_flight: PositiveInt
    max_queue: PositiveInt
    min_pairs: PositiveInt
    bake_s: NonNegativeFloat

    @property
    def setting(self) -> ShadowSetting:
        """Setting for the router."""
        return ShadowSetting(self.share, self.max_per_s, self.max_in_flight, self.max_queue)


@dataclass(frozen=True)
class Step:
    """A step with a fixed weight of the candidate.

    Attributes:
        weight: Share of the requests that the candidate answers.
        min_pairs: Least number of pairs of its requests and the stable pair's in this step before it ends;
            replays do not count.
        bake_s: Least duration of the step in seconds.
    """

    weight: float
    min_pairs: PositiveInt
    bake_s: NonNegativeFloat


@configuration.strict
@dataclass(frozen=True)
class Plan:
    """The plan of a rollout.

    Attributes:
        limits: Path of the file of limits relative to the plan's folder; "" for the default limits.
        slo_ttft_s: Longest time to first token of a good request.
        slo_itl_s: Longest time per output token of a good request.
        bands: Load bands by number of open requests; only requests of one band are compared.
        slow_after_s: Time without a first token after which the router asks the next arm too.
        shadow: Shadow phase, which comes first.
        steps: Steps of rising weight. The last one lasts until there is a verdict.
        hold_s: Time after which a candidate is rolled back whose metrics need review.
        idle_s: Time without a new awaited pair after which the candidate is rolled back.
        max_pairs: Number of the candidate's requests with a counterpart of the stable pair after which it is
            rolled back if there is no verdict; it limits how many clients a rollout affects. The same number
            of replays ends a rollout that could only decide by more of them.
        down_after_s: Time after which the candidate is rolled back while its socket refuses connections.
        drain_s: Time that requests of the second server have to finish before it is ended.
        watch_s: Time after promotion for which the former stable pair stays ready.
        lease_s: Time after which the router sends all requests to the stable pair, unless the lease is
            renewed.
        tick_s: Time between looks.
    """

    limits: str
    slo_ttft_s: PositiveFloat
    slo_itl_s: PositiveFloat
    bands: Bands
    slow_after_s: PositiveFloat
    shadow: Shadow
    steps: tuple[Step, ...]
    hold_s: NonNegativeFloat
    idle_s: PositiveFloat
    max_pairs: PositiveInt
    down_after_s: NonNegativeFloat
    drain_s: NonNegativeFloat
    watch_s: NonNegativeFloat
    lease_s: float
    tick_s: PositiveFloat

    def replayed_share(self, weight: float) -> float:
        """Compute the share of the stable pair's requests that the candidate replays at a weight.

        Caps the candidate's load at that of the stable pair, because a busier process is slower and times are
        compared.
        """
        stable = 1 - weight
        return min(self.shadow.share, max(0.0, round(1 - weight / stable, 3)))

    def __post_init__(self) -> None:
        weights = [0.0, *(step.weight for step in self.steps)]
        num_awaited = sum(step.min_pairs for step in self.steps)
        most = 1 - _MIN_STABLE_WEIGHT
        rules = {
            f"lease_s={self.lease_s:g} ends before the next look; at least twice tick_s={self.tick_s:g}": (
                self.lease_s >= 2 * self.tick_s
            ),
            f"max_pairs={self.max_pairs} ends the rollout before its last step; at least {num_awaited}": (
                self.max_pairs >= num_awaited
            ),
            f"weights of the steps must rise from above 0, in one step or more: {weights[1:]}": (
                len(weights) > 1 and all(before < after for before, after in itertools.pairwise(weights))
            ),
            f"the last step's weight {weights[-1]} leaves the stable pair too few requests; at most {most}": (
                weights[-1] <= most
            ),
        }
        for what, is_kept in rules.items():
            if not is_kept:
                raise CanaryError(what, _REMEDY)

    @property
    def slo(self) -> Slo:
        """Service-level objective of a good request."""
        return Slo(self.slo_ttft_s, self.slo_itl_s)


def read_plan(path: Path = DEFAULT) -> Plan:
    """Read a plan.

    Raises:
        CanaryError: The file cannot be read, or a key is unknown or missing or its value is invalid.
    """
    return configuration.read_yaml(Plan, path, CanaryError, _REMEDY)
