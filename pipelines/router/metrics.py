"""Counts, for Prometheus, what arms answer and how fast, whatever the arms are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
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
        self._counted = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"draftproof_arm_{name}", words, ("arm", *labels), registry=registry)

        def seconds(name: str, words: str) -> Histogram:
            return Histogram(
                f"draftproof_arm_{name}_seconds", words, ("arm",), buckets=_BUCKETS, registry=registry
            )

        outcomes = "answered, error, or left if no arm is to blame"
        self._requests = counter("requests", f"Requests by arm and outcome: {outcomes}", "outcome")
        self._fallbacks = counter("fallbacks", "Requests that another arm answered, by the arm they left")
        self._faults = counter("faults", "What an arm did instead of an answer", "fault")
        outcomes = "equal, different, error, or not compared"
        self._replays = counter("replays", f"Replays by arm and outcome: {outcomes}", "outcome")
        self._ttft_s = seconds("ttft", "Time to first token of streams in a rollout")
        self._e2e_s = seconds("e2e_latency", "Time from a request's arrival to the end of its answer")

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
        yield from self._counted.collect()
        table = self._table()
        words, labels = "Share of the requests that is routed to an arm", ("arm", "server")
        weight = GaugeMetricFamily(
            "draftproof_arm_weight", f"{words}, and its server or socket", labels=labels
        )
        for arm, share in table.weights(unix_time_s()).items():
            weight.add_metric((arm, table.sockets[arm]), share)
        words = "1 while an arm is avoided because it failed"
        out = GaugeMetricFamily("draftproof_arm_out", words, labels=("arm",))
        for arm in table.sockets:
            out.add_metric((arm,), self._is_out(arm))
        words = "Observations that could not be written"
        yield from (
            weight,
            out,
            CounterMetricFamily("draftproof_observations_dropped", words, self._num_lost()),
        )
