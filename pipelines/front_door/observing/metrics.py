"""Publishes the metrics of the front door, and of the server's models, on ``GET /metrics``.

What vLLM publishes too has its names; ``triton.backend.gauges`` names the sources.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import aiohttp
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from pipelines.front_door.observing.exchange import Ending, Exchange
from pipelines.front_door.served_model import ServedModel
from pipelines.web_application import metrics_page

LABELS = ("model_name", "engine")
ENGINE = "0"
"""Value of vLLM's label ``engine``: this server is one engine to its clients."""

# vLLM's buckets, with finer ones below: small models answer within milliseconds.
_LATENCY_BUCKETS = (
    *(0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0),
)
_INTERVAL_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0),
)
_SIZES = tuple(digit * 10**power for power in range(7) for digit in (1, 2, 5))


class RequestMetrics:
    """The metrics of the requests that arrive at the front door.

    Args:
        registry: Where they are published.
        model_name: Value of vLLM's label ``model_name``.
        max_seq_len: Most tokens of prompt and answer together.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, max_seq_len: int) -> None:
        of_model = {"model_name": model_name, "engine": ENGINE}
        sizes = [size for size in _SIZES if size < max_seq_len] + [max_seq_len]

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=registry).labels(**of_model)

        success = counter("vllm:request_success", "Answers, by how they ended", *LABELS, "finished_reason")
        self._success = {each: success.labels(**of_model, finished_reason=each) for each in get_args(Ending)}
        self._prompt_tokens = counter("vllm:prompt_tokens", "Tokens of the prompts", *LABELS).labels(
            **of_model
        )
        self._request_prompt_tokens = histogram("vllm:request_prompt_tokens", "Tokens of a prompt", sizes)
        self._request_generation_tokens = histogram(
            "vllm:request_generation_tokens", "Output tokens of an answer", sizes
        )
        self._latency_s = histogram(
            "vllm:e2e_request_latency_seconds",
            "Time from a request's arrival to the end of its response",
            _LATENCY_BUCKETS,
        )
        self._interval_s = histogram(
            "vllm:inter_token_latency_seconds",
            "Time between two chunks of a stream; a chunk has several tokens",
            _INTERVAL_BUCKETS,
        )

    def observe(self, exchange: Exchange) -> None:
        """Count the answers to a request that has ended."""
        for answer in exchange.answers:
            self._success[exchange.ending(answer)].inc()
            self._prompt_tokens.inc(len(answer.request.prompt_ids))
            if answer.finish_reason:
                self._request_prompt_tokens.observe(len(answer.request.prompt_ids))
                self._request_generation_tokens.observe(answer.num_output_tokens)
            for before_s, after_s in pairwise(answer.arrived_at_s):
                self._interval_s.observe(after_s - before_s)
        if exchange.answers and all(answer.finish_reason for answer in exchange.answers):
            self._latency_s.observe(exchange.ended_s - exchange.began_s)


_LOG = logging.getLogger(__name__)

_TIMEOUT_S = 2.0


class MetricsPage:
    """The metrics of a front door, and of its server unless the gateway is silent.

    Args:
        model: The served model; None where requests are passed on.
        address: ``host:port`` of the gateway's metrics; None without a server.

    Attributes:
        answer: Answers ``GET /metrics``.
    """

    def __init__(self, model: ServedModel | None = None, address: str | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # further series that nobody reads
        self._registry = CollectorRegistry()
        self._responses = Counter(
            "draftproof_front_door_responses",
            "Responses, by path and status",
            ("path", "status"),
            registry=self._registry,
        )
        self._requests = (
            None if model is None else RequestMetrics(self._registry, model.name, model.max_seq_len)
        )
        self._url = f"http://{address}/metrics" if address else None
        self._session: aiohttp.ClientSession | None = None
        self.answer = metrics_page(self._read)

    def observe(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        self._responses.labels(exchange.path or "other", str(exchange.status)).inc()
        if self._requests is not None:
            self._requests.observe(exchange)

    def publish(self, collector: Collector) -> None:
        """Publish further metrics."""
        self._registry.register(collector)

    async def close(self) -> None:
        """Close the connection to the gateway."""
        if self._session is not None:
            await self._session.close()

    async def _read(self) -> bytes:
        return (await self._published()).encode() + generate_latest(self._registry)

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
