"""How a candidate is let in, read from YAML: with which share of the requests, and until when."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipelines.bench.slo import Slo
from pipelines.errors import CanaryError
from pipelines.routing.arms import Bands, ShadowSetting
from pipelines.routing.strict_json import parse

DEFAULT = Path(__file__).with_name("canary.yaml")

_LEAST_REST = 0.01  # of the requests; without any there is nothing to compare the candidate with


@dataclass(frozen=True)
class Shadow:
    """The phase in which the candidate repeats what the stable pair answers, and is not heard.

    Attributes:
        share: Of the requests, at most; see ``Plan.replayed_share``.
        max_per_s: Replays begun per second.
        max_in_flight: Replays at a time.
        max_queue: Replays that wait.
        min_pairs: Replays beside their originals before the phase ends.
        bake_s: Seconds that the phase lasts at least.
    """

    share: float
    max_per_s: float
    max_in_flight: int
    max_queue: int
    min_pairs: int
    bake_s: float

    def __post_init__(self) -> None:
        _at_least("shadow.min_pairs", self.min_pairs, 1)
        _at_least("shadow.bake_s", self.bake_s, 0)
        if not self.share:
            raise _refuse("nothing would be repeated", "shadow.share=0", "above 0: tokens are compared there")
        self.setting  # noqa: B018 - refuses the rest

    @property
    def setting(self) -> ShadowSetting:
        """What the router is told."""
        return ShadowSetting(self.share, self.max_per_s, self.max_in_flight, self.max_queue)


@dataclass(frozen=True)
class Step:
    """One weight.

    Attributes:
        weight: Share of the requests that the candidate answers.
        min_pairs: Of its requests and the stable pair's, in this step, before it ends; replays do not count.
        bake_s: Seconds that it lasts at least.
    """

    weight: float
    min_pairs: int
    bake_s: float

    def __post_init__(self) -> None:
        _at_least("min_pairs", self.min_pairs, 1)
        _at_least("bake_s", self.bake_s, 0)


@dataclass(frozen=True)
class Plan:
    """All of it.

    Attributes:
        limits: File of limits, seen from the folder of this one; "" for the default ones.
        slo_ttft_s: Seconds to the first token that a good request keeps.
        slo_itl_s: Seconds per token after it.
        control_weight: Share of the requests that the target alone answers, to compare speed with.
        bands: Load bands by open requests; ``speed_up`` of the limits names each.
        slow_after_s: Wait for a first token after which the next arm is asked too.
        shadow: Comes first.
        steps: Of rising weight. The last lasts until the verdict.
        hold_s: Seconds for which a candidate above a limit, yet not shown to be bad, is watched.
        idle_s: Seconds without a new pair of those that the phase waits for, after which it leaves.
        max_pairs: Requests of clients that it has answered beside one of the stable pair's, after which it
            leaves if it has no verdict; they are what it may cost to find out. Replays cost nobody anything,
            but where no more of them would follow, so many end it as well.
        down_after_s: Seconds without an answer at its socket after which it leaves.
        drain_s: Seconds that requests of a leaving pair may go on before it is unloaded.
        watch_s: Seconds after promotion in which the stable pair of before stays loaded.
        lease_s: Seconds after which the router sends all to the stable pair, unless told anew.
        tick_s: Seconds between looks.
    """

    limits: str
    slo_ttft_s: float
    slo_itl_s: float
    control_weight: float
    bands: Bands
    slow_after_s: float
    shadow: Shadow
    steps: tuple[Step, ...]
    hold_s: float
    idle_s: float
    max_pairs: int
    down_after_s: float
    drain_s: float
    watch_s: float
    lease_s: float
    tick_s: float

    def replayed_share(self, weight: float) -> float:
        """Share of the stable pair's requests that the candidate repeats while it answers a share of its own.

        At most so many that it has no more to do than the stable pair: a process with more to do is slower,
        and times are compared.
        """
        stable = 1 - self.control_weight - weight
        return min(self.shadow.share, max(0.0, round(1 - weight / stable, 3)))

    def __post_init__(self) -> None:
        for name in ("hold_s", "down_after_s", "drain_s", "watch_s"):
            _at_least(name, getattr(self, name), 0)
        # Without a request of the control nothing is known of the speed-up, so nobody could pass.
        for name in ("slo_ttft_s", "slo_itl_s", "control_weight", "slow_after_s", "idle_s", "tick_s"):
            if not getattr(self, name) > 0:
                raise _refuse("a value is out of range", f"{name}={getattr(self, name)!r}", "above 0")
        _at_least("lease_s", self.lease_s, 2 * self.tick_s)
        # Fewer would end it before it could pass.
        _at_least("max_pairs", self.max_pairs, max(1, sum(step.min_pairs for step in self.steps)))
        weights = [step.weight for step in self.steps]
        if not weights or any(later <= before for before, later in itertools.pairwise([0.0, *weights])):
            raise _refuse(
                "weights do not rise", f"steps: {weights}", "one step at least, each above the last"
            )
        if self.control_weight + weights[-1] > 1 - _LEAST_REST:
            raise _refuse(
                "the weights do not sum up",
                f"control_weight={self.control_weight}, the last step {weights[-1]}",
                f"{1 - _LEAST_REST} together at most: the stable pair gets the rest, to be compared with",
            )

    @property
    def slo(self) -> Slo:
        """What a good request is."""
        return Slo(self.slo_ttft_s, self.slo_itl_s)


def read_plan(path: Path = DEFAULT) -> Plan:
    """Read a file.

    Raises:
        CanaryError: It cannot be read, or a key is unknown, missing or of a wrong type or range.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CanaryError(
            f"{path}: cannot be read",
            values=" ".join(str(error).split()),
            limit="a YAML file",
            remedy="correct the file, or leave --plan out for the default",
        ) from None
    try:
        return parse(Plan, raw)
    except CanaryError as error:
        raise CanaryError(
            f"{path}: {error.what}", values=error.values, limit=error.limit, remedy=error.remedy
        ) from None


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise _refuse("a value is out of range", f"{name}={value!r}", f"{least:g} at least")


def _refuse(what: str, values: str, limit: str) -> CanaryError:
    return CanaryError(what, values=values, limit=limit, remedy="correct the plan; nothing has begun")
