"""Memory growth and CPU time per output token of both pairs' processes.

Both are time series of a server and not values of requests, so they are judged differently.

*Memory* growth is not random: the measured growth itself is compared with its limits. Only the second half
of the candidate's service counts, and in it the quarter with less growth: a new process grows ever more
slowly while its caches fill, and a single jump is no leak, whereas a leak continues. The growth of the stable
pair in the same time is subtracted.

*CPU time per token* is compared in time slices in which both loops returned about the same number of tokens,
because a step that serves more requests takes less time per token. The slices are the trials of a
``MedianRatio``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx
import numpy as np

from pipelines import configuration
from pipelines.canary.judge.e_values import FloatArray, Side
from pipelines.canary.judge.measures import MedianRatio
from pipelines.errors import CanaryError

_LEAST_SAMPLES = 16  # so that a quarter of them has a slope
_MOST_SAMPLES = 100  # per quarter, because slopes of all pairs are computed

_SLICE_CPU_S = 0.2  # the server publishes CPU time in hundredths of a second
_SLICE_TOKENS = 50
_MAX_TOKEN_RATIO = 1.5  # of both loops in a slice

_TIMEOUT_S = 10.0

RESIDENT_BYTES = "draftproof_process_resident_memory_bytes"
CPU_SECONDS = "draftproof_process_cpu_seconds_total"
CONTROL_CPU_SECONDS = "draftproof_control_cpu_seconds_total"
OUTPUT_TOKENS = "draftproof_output_tokens_total"

# Without the tokens of the target alone, whose CPU time is subtracted.
_LINE = re.compile(
    rf"^({RESIDENT_BYTES}|{CPU_SECONDS}|{CONTROL_CPU_SECONDS}|{OUTPUT_TOKENS})"
    r'{(?![^}]*\bsource="control")[^}]*?\bmodel="speculative"[^}]*} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Taken:
    """Resources that one pair has used so far.

    Attributes:
        resident_bytes: Current resident memory of all its processes.
        cpu_s: User and system time of its loop's process since that started.
        output_tokens: Output tokens of the loop since its process started.
    """

    resident_bytes: float
    cpu_s: float
    output_tokens: float


@configuration.strict
@dataclass(frozen=True)
class Sample:
    """Resources of both pairs at one time.

    Attributes:
        at_s: Unix time.
        candidate: Resources of the candidate.
        stable: Resources of the pair in service.
    """

    at_s: float
    candidate: Taken
    stable: Taken


def read_taken(metrics_url: str) -> Taken:
    """Read what an engine's process has used so far.

    Args:
        metrics_url: ``http://host:port/metrics``.

    Raises:
        CanaryError: The server does not answer, or a metric is missing.
    """
    try:
        text = httpx.get(metrics_url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().text
        figures: Counter[str] = Counter()
        for name, value in _LINE.findall(text):
            figures[name] += float(value)  # type: ignore[assignment]  # sums tokens over the label source
        cpu_s = figures[CPU_SECONDS] - figures[CONTROL_CPU_SECONDS]
        if missing := {RESIDENT_BYTES, CPU_SECONDS, OUTPUT_TOKENS} - figures.keys():
            raise KeyError(*missing)
        return Taken(figures[RESIDENT_BYTES], cpu_s, figures[OUTPUT_TOKENS])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise CanaryError(
            f"memory and CPU time of a server cannot be read from {metrics_url}: {error!r}",
            "check the metrics port of the server, which must have this version",
        ) from None


@dataclass(frozen=True)
class Growth:
    """Relative growth of the candidate's resident memory less the stable pair's.

    Attributes:
        times_s: [n], times of the samples, ascending.
        candidate: [n], bytes of the candidate.
        baseline: [n], bytes of the stable pair.
        least_s: Seconds that the samples must cover before there is an estimate.
    """

    times_s: FloatArray
    candidate: FloatArray
    baseline: FloatArray
    least_s: float

    @property
    def num(self) -> int:
        """Number of samples."""
        return len(self.times_s)

    @property
    def regression_range(self) -> tuple[float, float]:
        """Range for ratios from 0 to 10."""
        return -1.0, 9.0

    @property
    def estimate(self) -> float | None:
        """Growth in the second half of the time; None while there are too few samples."""
        if self.num < _LEAST_SAMPLES or self.times_s[-1] - self.times_s[0] < self.least_s:
            return None
        return self._grown(self.candidate) - max(0.0, self._grown(self.baseline))

    def log_evidence(self, side: Side, regression: float) -> float:
        """Return infinite evidence if the growth lies on that side, because it is not random."""
        estimate = self.estimate
        if estimate is None:
            return -np.inf
        return np.inf if (estimate > regression if side == "above" else estimate < regression) else -np.inf

    def _grown(self, values: FloatArray) -> float:
        begin_s, end_s = float(self.times_s[0]), float(self.times_s[-1])
        half_s = (end_s - begin_s) / 2
        borders = [begin_s + share * half_s for share in (1.0, 1.5, 2.0)]
        places = np.searchsorted(self.times_s, borders)
        quarters = [slice(places[0], places[1]), slice(places[1], self.num)]
        if any(len(values[quarter]) < 2 for quarter in quarters):
            return 0.0
        slopes = [_slope(self.times_s[quarter], values[quarter]) for quarter in quarters]
        return min(slopes) * half_s / float(np.median(values[quarters[0]]))


def memory_growth(samples: Sequence[Sample], least_s: float) -> Growth:
    """Build the memory growth since a process of either pair last restarted."""
    latest = _since_restart(samples)
    times, candidate, stable = (
        np.array(column, np.float64)
        for column in (
            [each.at_s for each in latest],
            [each.candidate.resident_bytes for each in latest],
            [each.stable.resident_bytes for each in latest],
        )
    )
    return Growth(times, candidate, stable, least_s)


def cpu_per_token(samples: Sequence[Sample]) -> MedianRatio:
    """Build CPU seconds per output token of both loops, in slices with a similar load of both."""
    table = np.array(list(_slices(_since_restart(samples))), np.float64).reshape(-1, 2)
    return MedianRatio(table[:, 0], table[:, 1])


def _slices(samples: Sequence[Sample]) -> Iterator[tuple[float, float]]:
    before: Sample | None = None
    for sample in samples:
        if before is None:
            before = sample
            continue
        ours, theirs = _spent(before.candidate, sample.candidate), _spent(before.stable, sample.stable)
        if min(ours[0], theirs[0]) < _SLICE_CPU_S or min(ours[1], theirs[1]) < _SLICE_TOKENS:
            continue
        before = sample
        if 1 / _MAX_TOKEN_RATIO <= ours[1] / theirs[1] <= _MAX_TOKEN_RATIO:
            yield ours[0] / ours[1], theirs[0] / theirs[1]


def _spent(before: Taken, after: Taken) -> tuple[float, float]:
    """Return CPU seconds and output tokens between two samples."""
    return after.cpu_s - before.cpu_s, after.output_tokens - before.output_tokens


def _since_restart(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Drop samples before a restart, which resets the counters of a process."""
    begin = 0
    for place in range(1, len(samples)):
        pairs = [
            (samples[place - 1].candidate, samples[place].candidate),
            (samples[place - 1].stable, samples[place].stable),
        ]
        if any(min(_spent(before, after)) < 0 for before, after in pairs):
            begin = place
    return samples[begin:]


def _slope(times_s: FloatArray, values: FloatArray) -> float:
    """Compute the Theil-Sen slope, the median over all pairs of points, which is robust to outliers."""
    chosen = np.unique(np.linspace(0, len(values) - 1, _MOST_SAMPLES).astype(int))
    times_s, values = times_s[chosen], values[chosen]
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / (times_s[second] - times_s[first])))
