"""Publishes what operators watch of a service and its rollout, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Metric, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.errors import CanaryError
from pipelines.front_door.observing.exchange import Exchange
from pipelines.router.metrics import ArmMetrics

_LOG = logging.getLogger(__name__)

_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class UpstreamMetrics(Collector):
    """The metrics of one process.

    Args:
        arms: Those of the servers.
        phase: Returns the phase of the rollout, "" without one; called on a thread.
        registry: Where they are published; None for one of their own.
    """

    def __init__(
        self, arms: ArmMetrics, phase: Callable[[], str], registry: CollectorRegistry | None = None
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # further series that nobody reads
        self._phase = phase
        self._registry = registry = registry or CollectorRegistry()
        self._responses = Counter(
            "draftproof_upstreams_responses",
            "Responses to clients, by path and status",
            ("path", "status"),
            registry=registry,
        )
        registry.register(arms)
        registry.register(self)

    async def answer(self) -> web.Response:
        """Return all metrics in Prometheus' format."""
        page = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=page, headers=_HEADERS)

    def count_response(self, exchange: Exchange) -> None:
        """Count a response to a client, whatever its path."""
        self._responses.labels(exchange.path or "other", str(exchange.status)).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield the phase of the rollout."""
        phase = GaugeMetricFamily(
            "draftproof_upstreams_phase",
            "Phase of the latest rollout, as a label; always 1",
            labels=("phase",),
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
