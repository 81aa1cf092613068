"""Counts, for Prometheus, what arms answer and how fast, whatever the arms are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

from prometheus_client import Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.router.arms import Arm, ArmTable
from pipelines.router.observation import Observation, unix_time_s

Ended = Literal["answered", "error", "left"]
"""How a request ended: "left" if no arm is to blame, because the client disconnected, its deadline passed, or
the request was refused."""

_BUCKETS = (
    *(0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0),
)


class ArmMetrics(Collector):
    """The metrics of one router.

    Args:
        table: Returns the table of arms.
        is_out: Whether an arm is avoided because it failed.
        num_lost: Returns the number of observations that were lost.
    """

    def __init__(
        self, table: Callable[[], ArmTable], is_out: Callable[[Arm], bool], num_lost: Callable[[], int]
    ) -> None:
        self._table, self._is_out, self._num_lost = table, is_out, num_lost
        self._requests = Counter(
            "draftproof_arm_requests",
            "Requests by arm and outcome: answered, error, or left if no arm is to blame",
            ("arm", "outcome"),
            registry=None,
        )
        self._fallbacks = Counter(
            "draftproof_arm_fallbacks",
            "Requests that another arm answered, by the arm they left",
            ("arm",),
            registry=None,
        )
        self._faults = Counter(
            "draftproof_arm_faults", "What an arm did instead of an answer", ("arm", "fault"), registry=None
        )
        self._replays = Counter(
            "draftproof_arm_replays",
            "Replays, by arm and outcome: equal, different, error, or not compared",
            ("arm", "outcome"),
            registry=None,
        )
        self._ttft_s, self._e2e_s = (
            Histogram(f"draftproof_arm_{name}_seconds", words, ("arm",), buckets=_BUCKETS, registry=None)
            for name, words in (
                ("ttft", "Time to first token of streams in a rollout, by arm"),
                ("e2e_latency", "Time from a request's arrival to the end of its answer, by arm"),
            )
        )

    def count(self, observation: Observation, ended: Ended) -> None:
        """Count a request or a replay that has ended."""
        arm = observation.arm
        if observation.is_replay:
            if ended != "left":
                compared = {"equal": "equal", "diverged": "different"}.get(observation.answer, "not compared")
                self._replays.labels(arm, "error" if observation.failure else compared).inc()
            return
        self._requests.labels(arm, ended).inc()
        faults = itertools.chain(observation.fallback_faults, observation.fallback_reasons)
        for left, fault in zip(observation.fallback_from, faults, strict=False):
            self._fallbacks.labels(left).inc()
            self._faults.labels(left, fault).inc()
        if ended == "error":
            self._faults.labels(arm, observation.fault or observation.failure).inc()
        if ended != "left" and observation.ttft_s is not None:
            self._ttft_s.labels(arm).observe(observation.ttft_s)
        if ended != "left" and observation.e2e_latency_s is not None:
            self._e2e_s.labels(arm).observe(observation.e2e_latency_s)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for counted in (
            self._requests,
            self._fallbacks,
            self._faults,
            self._replays,
            self._ttft_s,
            self._e2e_s,
        ):
            yield from counted.collect()
        table = self._table()
        weight = GaugeMetricFamily(
            "draftproof_arm_weight",
            "Share of the requests that is routed to an arm, and its server or socket",
            labels=("arm", "server"),
        )
        for arm, share in table.weights(unix_time_s()).items():
            weight.add_metric((arm, table.sockets[arm]), share)
        out = GaugeMetricFamily(
            "draftproof_arm_out", "1 while an arm is avoided because it failed", labels=("arm",)
        )
        for arm in table.sockets:
            out.add_metric((arm,), self._is_out(arm))
        yield from (weight, out)
        yield CounterMetricFamily(
            "draftproof_observations_dropped", "Observations that could not be written", self._num_lost()
        )
