"""Publishes what operators watch of a service and its rollout, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.errors import CanaryError
from pipelines.front_door.observing.exchange import Exchange
from pipelines.router.arms import LiveArms
from pipelines.router.observation import Observation, unix_time_s
from pipelines.router.routing import Ended

_LOG = logging.getLogger(__name__)

_NAME = "draftproof_upstreams"
_BUCKETS = (
    *(0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0),
)
_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class UpstreamMetrics(Collector):
    """The metrics of one process.

    Args:
        arms: The table of arms.
        phase: Returns the phase of the rollout, "" without one; called on a thread.
        registry: Where they are published; None for one of their own.
    """

    def __init__(
        self,
        arms: LiveArms,
        phase: Callable[[], str],
        registry: CollectorRegistry | None = None,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # further series that nobody reads
        self._arms = arms
        self._phase = phase
        self._registry = registry = registry or CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"{_NAME}_{name}", words, labels, registry=registry)

        def seconds(name: str, words: str) -> Histogram:
            return Histogram(f"{_NAME}_{name}_seconds", words, ("arm",), buckets=_BUCKETS, registry=registry)

        self._responses = counter("responses", "Responses to clients, by path and status", "path", "status")
        self._requests = counter(
            "requests",
            "Requests, by the arm that answered or was asked last, and outcome: answered, error, or left "
            "if no server is to blame",
            *("arm", "outcome"),
        )
        self._faults = counter(
            "faults", "What a server did instead of an answer to a client, by arm", "arm", "fault"
        )
        self._fallbacks = counter(
            "fallbacks", "Requests that another arm answered, by the arm they left", "arm"
        )
        self._replays = counter(
            "replays",
            "Replays, by arm and outcome: equal, different, error, or not compared",
            *("arm", "outcome"),
        )
        self._ttft_s = seconds("ttft", "Time to first token of streams, by arm")
        self._e2e_s = seconds("e2e_latency", "Time from a request's arrival to the end of its answer, by arm")
        registry.register(self)

    async def answer(self) -> web.Response:
        """Return all metrics in Prometheus' format."""
        page = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=page, headers=_HEADERS)

    def count_response(self, exchange: Exchange) -> None:
        """Count a response to a client, whatever its path."""
        self._responses.labels(exchange.path or "other", str(exchange.status)).inc()

    def count(self, observation: Observation, ended: Ended) -> None:
        """Count a request or a replay that has ended."""
        arm = observation.arm
        if observation.is_replay:
            if ended != "left":
                self._replays.labels(arm, _compared(observation)).inc()
            return
        self._requests.labels(arm, ended).inc()
        faults = [*zip(observation.fallback_from, observation.fallback_faults, strict=True)]
        for left in observation.fallback_from:
            self._fallbacks.labels(left).inc()
        if ended == "error":
            faults.append((arm, observation.fault))
        for of_arm, fault in faults:
            self._faults.labels(of_arm, fault).inc()
        if ended != "left" and observation.ttft_s is not None:
            self._ttft_s.labels(arm).observe(observation.ttft_s)
        if ended != "left" and observation.e2e_latency_s is not None:
            self._e2e_s.labels(arm).observe(observation.e2e_latency_s)

    def collect(self) -> Iterator[Metric]:
        """Yield what changes without a request."""
        weight = GaugeMetricFamily(
            f"{_NAME}_weight",
            "Share of the requests that is routed to an arm, and its server",
            labels=("arm", "server"),
        )
        table = self._arms.read()
        for arm, share in table.weights(unix_time_s()).items():
            weight.add_metric((arm, table.sockets[arm]), share)
        yield weight
        phase = GaugeMetricFamily(
            f"{_NAME}_phase", "Phase of the latest rollout, as a label; always 1", labels=("phase",)
        )
        if found := self._known_phase():
            phase.add_metric((found,), 1)
        yield phase

    def _known_phase(self) -> str:
        try:
            return self._phase()
        except CanaryError as error:  # the other metrics are as good as before
            _LOG.warning("the phase of the rollout cannot be read: %s", error)
            return ""


def _compared(observation: Observation) -> str:
    if observation.failure:
        return "error"
    return {"equal": "equal", "diverged": "different"}.get(observation.answer, "not compared")
