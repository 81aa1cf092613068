"""Limits of a candidate's regressions, read from YAML; unknown keys are errors.

Every metric has two limits. It passes once its regression is shown to be below ``pass_below``, and fails once
it is shown to be above ``rollback_above``. A metric that is only shown to be above ``pass_below`` needs
review: more requests will not make it pass. Either limit may be the lower one, because showing that there is
no regression can take more requests than showing that there is one. A metric whose limit is ``null`` is not
judged, and the verdict says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, PositiveInt

from pipelines import configuration
from pipelines.errors import CanaryError

DEFAULT = Path(__file__).with_name("limits.yaml")

# Ranges of possible regressions (``Measure.regression_range``). A limit must lie strictly inside: one at or
# beyond an end would be reached never or always, and a bet on it would have no stake.
Rise = Annotated[float, Field(gt=-1, lt=9)]
Drop = Annotated[float, Field(gt=-9, lt=1)]
Difference = Annotated[float, Field(gt=-1, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]

Regression = TypeVar("Regression")


@dataclass(frozen=True)
class Limit(Generic[Regression]):
    """Limits of one metric, as a share of 1 or a difference of shares."""

    pass_below: Regression
    rollback_above: Regression


@configuration.strict
@dataclass(frozen=True)
class Limits:
    """Limits of all metrics.

    Attributes:
        alpha: Largest probability that a candidate fails that exceeds no ``rollback_above``, over all metrics
            and however often the judge looks.
        confidence: 1 less the largest probability that a candidate passes that has reached a ``pass_below``.
        min_requests: Least number of pairs for which a metric is judged.
        runtime: "exact" if every token must be the target's own, or "batch_dependent" if ties are excused.
        quantile: Quantile of the end-to-end latency for ``e2e_tail``.
        answers: Share of prompts whose answers diverge in anything that a client sees; with "exact" a single
            one fails. If the stable arm answers replays again itself, the rise of that share above its own.
        answers_repeated: The same, instead of ``answers``, as long as the stable arm has answered each replay
            as before; None for no such limits.
        errors: Rise of the share of requests that fail.
        timeouts: Rise of the share of requests that time out.
        goodput: Fall of the share of requests that keep the SLO.
        acceptance_rate: Relative drop of the acceptance rate, in rounds of replays that begin as rounds of
            the original answers (``pairing``).
        ttft: Relative rise of the time to first token.
        itl: Relative rise of the time per output token.
        e2e_tail: Relative rise of a high quantile of end-to-end latency.
        pause_s: Time between two responses of a streamed answer that counts as a pause; must be well above
            the usual times of the stable pair.
        pauses: Rise of the share of streamed answers with a pause.
        resources_s: Seconds of service before the candidate's memory is judged.
        memory: Growth of the resident memory of the candidate's processes in the second half of its service,
            less the growth of the stable pair's (``resources``); not random.
        cpu_per_token: Relative rise of the CPU time of the loop's process per output token.
    """

    alpha: Annotated[float, Field(gt=0, lt=0.5)]
    confidence: Annotated[float, Field(gt=0.5, lt=1)]
    min_requests: PositiveInt
    runtime: Literal["exact", "batch_dependent"]
    quantile: Share
    answers: Limit[Share] | None
    errors: Limit[Difference]
    timeouts: Limit[Difference]
    goodput: Limit[Difference] | None
    acceptance_rate: Limit[Drop] | None
    ttft: Limit[Rise] | None
    itl: Limit[Rise] | None
    e2e_tail: Limit[Rise]
    pause_s: Annotated[float, Field(gt=0, lt=3600)]
    pauses: Limit[Difference] | None
    resources_s: Annotated[float, Field(gt=0, lt=86400)]
    memory: Limit[Rise] | None
    cpu_per_token: Limit[Rise] | None
    answers_repeated: Limit[Share] | None = None

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Names of the metrics without limits."""
        unset = (name for name, value in vars(self).items() if value is None)
        return tuple(name for name in unset if name != "answers_repeated")

    @property
    def judges_resources(self) -> bool:
        """Whether memory or CPU time is judged."""
        return self.memory is not None or self.cpu_per_token is not None


@dataclass(frozen=True)
class Slo:
    """Limits of a good request, which must keep both (as in AIPerf's goodput).

    Attributes:
        ttft_s: Longest time to first token.
        itl_s: Longest time per token after it, (e2e - TTFT) / (tokens - 1).
    """

    ttft_s: float
    itl_s: float

    def is_kept_by(self, ttft_s: float | None, itl_s: float | None) -> bool:
        """Return whether an answer with these times keeps the limits; one of a single token has no ITL."""
        return ttft_s is not None and ttft_s <= self.ttft_s and (itl_s is None or itl_s <= self.itl_s)


def read_limits(path: Path = DEFAULT) -> Limits:
    """Read limits from a YAML file.

    Raises:
        CanaryError: The file cannot be read, or a key is unknown or missing or its value is invalid.
    """
    return configuration.read_yaml(
        Limits, path, CanaryError, "correct the limits; the rollout was not started"
    )
