"""Answers ``GET /metrics``: everything that the server publishes, and the same under vLLM's names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, disable_created_metrics, generate_latest
from prometheus_client.registry import Collector

from pipelines.front_door.observing.model_metrics import samples_of, under_vllms_names
from pipelines.front_door.observing.request_metrics import RequestMetrics
from pipelines.front_door.served_model import ServedModel

_LOG = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class MetricsPage:
    """The metrics of a front door, and of its server.

    Attributes:
        requests: Metrics of the requests that arrive here.

    Args:
        model: The served model.
        address: ``host:port`` of the gateway's metrics; None without a server.
    """

    def __init__(self, model: ServedModel, address: str | None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # further series that nobody reads
        self._registry = CollectorRegistry()
        self.requests = RequestMetrics(self._registry, model.name, model.max_seq_len)
        self._model_name = model.name
        self._kv_block_size = model.kv_block_size
        self._url = f"http://{address}/metrics" if address else None
        self._session: aiohttp.ClientSession | None = None

    def publish(self, collector: Collector) -> None:
        """Publish further metrics."""
        self._registry.register(collector)

    async def close(self) -> None:
        """Close the connection to the gateway."""
        if self._session is not None:
            await self._session.close()

    async def answer(self, request: web.Request) -> web.Response:
        """Return all metrics in Prometheus' format; only those of the front door if the gateway is silent."""
        published = await self._published()
        models = under_vllms_names(samples_of(published), self._model_name, self._kv_block_size)
        text = published.encode() + generate_latest(_Found(models)) + generate_latest(self._registry)
        return web.Response(body=text, headers=_HEADERS)

    async def _published(self) -> str:
        if self._url is None:
            return ""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        try:
            async with self._session.get(self._url) as reply:
                return await reply.text()
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            _LOG.warning("the gateway's metrics cannot be read: %r", error)
            return ""


class _Found(Collector):
    """Metrics that were found elsewhere."""

    def __init__(self, metrics: Iterator[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield them."""
        return self._metrics
