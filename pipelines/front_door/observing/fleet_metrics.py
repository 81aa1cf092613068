"""Publishes what a front door knows of the servers of its fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.front_door.fleet.server import FleetServer

_LABELS = ("server",)


class FleetMetrics(Collector):
    """Metrics by server, and of the whole fleet.

    Args:
        servers: The servers by their addresses.
        num_resumed: Returns how many answers another server has continued.
    """

    def __init__(self, servers: Mapping[str, FleetServer], num_resumed: Callable[[], int]) -> None:
        self._servers = servers
        self._num_resumed = num_resumed

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        ready = GaugeMetricFamily(
            "draftproof_fleet_server_ready", "Whether a server of the fleet takes requests", labels=_LABELS
        )
        open_answers = GaugeMetricFamily(
            "draftproof_fleet_server_open_answers", "Answers that a server of the fleet owes", labels=_LABELS
        )
        failures = CounterMetricFamily(
            "draftproof_fleet_server_failures", "Requests that a server of the fleet failed", labels=_LABELS
        )
        for address, server in self._servers.items():
            ready.add_metric((address,), server.is_ready)
            open_answers.add_metric((address,), server.num_open)
            failures.add_metric((address,), server.num_failures)
        yield from (ready, open_answers, failures)
        yield CounterMetricFamily(
            "draftproof_fleet_continued_answers",
            "Answers that another server of the fleet continued",
            value=self._num_resumed(),
        )
