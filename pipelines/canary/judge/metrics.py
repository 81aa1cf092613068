"""Build the metrics that a candidate is judged by from observed requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.canary.judge.e_values import FloatArray
from pipelines.canary.judge.limits import Limit, Limits, Slo
from pipelines.canary.judge.measures import (
    MeanDifference,
    MeanRatio,
    Measure,
    MedianRatio,
    QuantileRatio,
    Rate,
)
from pipelines.canary.judge.pairing import Pair, matched_rounds, pair_up
from pipelines.canary.judge.resources import Sample, cpu_per_token, memory_growth
from pipelines.router.observation import Difference, Observation

_Read = Callable[[Observation], float | None]

_LEAST_SLICES = 10  # of time, with hundreds of tokens each

_MOST_PAUSING = 0.5  # share of the stable pair's answers above which a rise cannot be measured

_MOST_UNREPEATED = 0.5  # likewise, of prompts that the stable arm answers differently the second time

_MOST_PARTED = 0.95  # likewise, of replays that have no text in common with the answer that they repeat

_SEVERITY_IN_A_BATCH: dict[Difference, int] = {"tokens": 1, "log_probs": 0}


@dataclass(frozen=True)
class Metric:
    """One metric of a candidate.

    Attributes:
        name: Name as in ``Limits``.
        measure: Regression and its observations.
        limit: Limits of the regression.
        is_exact: Whether a single event fails.
        by_replays: Whether only replays give evidence of it.
        is_measured: Whether it is not random, so that the estimate itself is compared with the limits.
        least_trials: Least number of trials for which it is judged; None for ``Limits.min_requests``.
        review_above: Regression that needs review if it is proven; None for the one that may not pass.
        detail: Text for people in addition to its figures; "" for none.
    """

    name: str
    measure: Measure
    limit: Limit[float]
    is_exact: bool = False
    by_replays: bool = False
    is_measured: bool = False
    least_trials: int | None = None
    review_above: float | None = None
    detail: str = ""

    @property
    def is_tested(self) -> bool:
        """Whether it fails by statistical evidence, which is corrected for the number of metrics."""
        return not (self.is_exact or self.is_measured)


def metrics_of(
    requests: Sequence[Observation], limits: Limits, slo: Slo, samples: Sequence[Sample] | None = None
) -> list[Metric]:
    """Build every metric that has limits.

    Args:
        requests: Requests of all arms, in the order in which they were read.
        limits: Limits, which determine the metrics.
        slo: Service-level objective for goodput.
        samples: Memory and CPU time of both pairs in the order of time; None if they are not judged.

    """
    pairs = pair_up(requests, "candidate", "stable")
    # A replay runs during or after the request that it repeats, so its times are not comparable.
    timed = pair_up([request for request in requests if not request.is_replay], "candidate", "stable")
    latencies = _values(timed, _infinite_if_failed(lambda each: each.e2e_latency_s))
    return [
        *_answers(requests, limits),
        Metric("errors", _rise(pairs, lambda each: each.failure == "error"), limits.errors),
        Metric("timeouts", _rise(timed, lambda each: each.failure == "timeout"), limits.timeouts),
        *_goodput(timed, limits, slo),
        *_acceptance(pairs, limits),
        *_slower("ttft", timed, lambda each: each.ttft_s, limits.ttft),
        *_slower("itl", timed, lambda each: each.itl_s, limits.itl),
        Metric("e2e_tail", QuantileRatio(*latencies, limits.quantile), limits.e2e_tail),
        *_pauses(timed, limits),
        *(() if samples is None else _resources(samples, limits)),
    ]


def _answers(requests: Sequence[Observation], limits: Limits) -> Iterator[Metric]:
    """Count each prompt as one trial, because its answers diverge together; the worst answer counts."""
    if limits.answers is None:
        return
    worst = _worst_answers(requests, "candidate", limits)
    again = _worst_answers([each for each in requests if each.is_replay], "stable", limits)
    differing = Counter(each.differs_in for each in worst.values() if each.differs_in)
    detail = ", ".join(f"{what} of {_prompts(number)}" for what, number in differing.most_common())
    is_exact = limits.runtime == "exact"
    if again and not is_exact:
        yield _answers_above_noise(worst, again, limits, detail)
        return
    if not worst:
        detail = "nothing could be compared: that needs requests with temperature 0 or a seed"
    found = np.array([severity(each, limits) for each in worst.values()])
    measure = Rate(found > 1, found > 0)
    yield Metric("answers", measure, limits.answers, is_exact, by_replays=True, detail=detail)


def severity(request: Observation, limits: Limits) -> int:
    """Return 0 for an answer that is right or was not compared, 2 for a wrong one, 1 for one of either kind.

    Where answers depend on the batch, other tokens may come from a tie, and log probabilities differ in their
    last bits.
    """
    if request.answer != "diverged":
        return 0
    return 2 if limits.runtime == "exact" else _SEVERITY_IN_A_BATCH.get(request.differs_in, 2)


def _worst_answers(requests: Sequence[Observation], arm: str, limits: Limits) -> dict[str, Observation]:
    """Return the worst compared answer of an arm to each prompt, in the order of arrival."""
    worst: dict[str, Observation] = {}
    for request in sorted(requests, key=lambda request: request.arrived_at_s):
        if request.arm == arm and request.answer:
            key = request.prompt_id or f"request {request.request_id}"
            worst[key] = max(worst.get(key, request), request, key=lambda each: severity(each, limits))
    return worst


def _answers_above_noise(
    worst: dict[str, Observation], again: dict[str, Observation], limits: Limits, detail: str
) -> Metric:
    """Compare the candidate's replays with those of the stable arm, which shows its own noise.

    Both repeat the same answers, so a candidate that is as noisy as the stable arm differs as often. The
    limits are tighter while the stable arm repeats itself. Their test is valid at all times, so it does not
    matter that the data choose between them.
    """
    assert limits.answers is not None
    both = [[severity(each[key], limits) > 0 for each in (worst, again)] for key in worst if key in again]
    ours, theirs = np.array(both, np.float64).reshape(-1, 2).T
    noise = f"{_prompts(int(theirs.sum()))} of {len(theirs)} by the stable arm's own repetition"
    detail = f"{detail or 'none'}; {noise}"
    limit = limits.answers if theirs.any() else limits.answers_repeated or limits.answers
    if theirs.sum() > _MOST_UNREPEATED * len(theirs):
        ours, theirs = ours[:0], theirs[:0]
        detail = f"cannot be judged: {detail}"
    measure = MeanDifference(ours, theirs)
    return Metric("answers", measure, limit, by_replays=True, review_above=0.0, detail=detail)


def _prompts(number: int) -> str:
    return "1 prompt" if number == 1 else f"{number} prompts"


def _goodput(timed: Sequence[Pair], limits: Limits, slo: Slo) -> Iterator[Metric]:
    if limits.goodput is not None:
        yield Metric("goodput", MeanDifference(*_values(timed, _good_by(slo)), sign=-1), limits.goodput)


def _slower(name: str, timed: Sequence[Pair], read: _Read, limit: Limit[float] | None) -> Iterator[Metric]:
    if limit is not None:
        yield Metric(name, MedianRatio(*_values(timed, _infinite_if_failed(read))), limit)


def _pauses(timed: Sequence[Pair], limits: Limits) -> Iterator[Metric]:
    """Compare shares of answers with a pause; rare pauses change neither means nor most quantiles."""
    if limits.pauses is None:
        return

    def has_pause(request: Observation) -> float | None:
        if request.ttft_s is None:  # it failed or was not streamed
            return None
        return float((request.longest_pause_s or 0.0) > limits.pause_s)

    ours, theirs = _values(timed, has_pause)
    if theirs.sum() > _MOST_PAUSING * len(theirs):
        nothing = MeanDifference(ours[:0], theirs[:0])
        detail = f"most answers of the stable pair also pause for more than pause_s={limits.pause_s:g}"
        yield Metric("pauses", nothing, limits.pauses, detail=detail)
    else:
        yield Metric("pauses", MeanDifference(ours, theirs), limits.pauses)


def _acceptance(pairs: Sequence[Pair], limits: Limits) -> Iterator[Metric]:
    """Compare the share of accepted draft tokens in matched rounds of replays (``pairing``).

    A candidate with another target may answer differently from the first token on. Then there are no matched
    rounds, and acceptance is not judged.
    """
    if limits.acceptance_rate is None:
        return
    replays = [pair for pair in pairs if pair.candidate.num_common_tokens is not None]
    rounds = matched_rounds(replays)
    has_rounds = np.bincount(rounds.pair, minlength=len(replays)) > 0
    has_parted = np.array(list(map(_has_parted, replays)), np.bool_)
    if (has_parted & ~has_rounds).sum() > _MOST_PARTED * len(replays):
        return
    drafted, ours, theirs = (
        np.bincount(rounds.pair, tokens) for tokens in (rounds.depth, rounds.by_candidate, rounds.by_baseline)
    )
    has_any = drafted > 0
    rates = MeanRatio(ours[has_any] / drafted[has_any], theirs[has_any] / drafted[has_any], sign=-1)
    yield Metric("acceptance_rate", rates, limits.acceptance_rate, by_replays=True)


def _has_parted(pair: Pair) -> bool:
    return pair.candidate.num_common_tokens != pair.baseline.num_output_tokens


def _resources(samples: Sequence[Sample], limits: Limits) -> Iterator[Metric]:
    if limits.memory is not None:
        yield Metric("memory", memory_growth(samples, limits.resources_s), limits.memory, is_measured=True)
    if limits.cpu_per_token is not None:
        spent = cpu_per_token(samples)
        yield Metric("cpu_per_token", spent, limits.cpu_per_token, least_trials=_LEAST_SLICES)


def _values(pairs: Sequence[Pair], read: _Read) -> tuple[FloatArray, FloatArray]:
    """Read the values of pairs in which both requests have one."""
    both = [(read(pair.candidate), read(pair.baseline)) for pair in pairs]
    known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
    table = np.array(known, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _rise(pairs: Sequence[Pair], is_event: Callable[[Observation], bool]) -> MeanDifference:
    return MeanDifference(*_values(pairs, lambda request: float(is_event(request))), sign=1)


def _good_by(slo: Slo) -> _Read:
    def is_good(request: Observation) -> float | None:
        if request.failure:
            return 0.0
        return None if request.ttft_s is None else float(slo.is_kept_by(request.ttft_s, request.itl_s))

    return is_good


def _infinite_if_failed(read: _Read) -> _Read:
    """Count failed requests as infinitely slow."""
    return lambda request: np.inf if request.failure else read(request)
