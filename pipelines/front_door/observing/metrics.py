"""Publishes the metrics of the front door, and of the server's models, on ``GET /metrics``.

They have vLLM's names, which dashboards and the endpoint pickers of Kubernetes gateways read. Sources:
``vllm/v1/metrics/loggers.py`` and ``vllm/v1/spec_decode/metrics.py`` of vLLM 0.32.0, and
``docs/proposals/003-model-server-protocol`` of kubernetes-sigs/gateway-api-inference-extension.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, get_args

import aiohttp
from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pipelines.front_door.observing.exchange import Ending, Exchange
from pipelines.front_door.served_model import ServedModel

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

        self._responses = counter(
            "draftproof_front_door_responses", "Responses, by path and status", "path", "status"
        )
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
        """Count a request that has ended."""
        self._responses.labels(exchange.path or "other", str(exchange.status)).inc()
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
        found: Any = SimpleNamespace(collect=lambda: models)  # all that it asks of a registry
        text = published.encode() + generate_latest(found) + generate_latest(self._registry)
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


# vLLM's name -> ours and the description; names of counters end in ``_total``.
_COUNTERS = {
    "vllm:spec_decode_num_drafts": ("spec_decode_num_drafts", "Rounds that verified draft tokens"),
    "vllm:spec_decode_num_draft_tokens": ("spec_decode_num_draft_tokens", "Draft tokens verified"),
    "vllm:spec_decode_num_accepted_tokens": ("spec_decode_num_accepted_tokens", "Draft tokens accepted"),
    "vllm:generation_tokens": ("draftproof_output_tokens", "Output tokens"),
    "vllm:prefix_cache_queries": (
        "draftproof_prefix_cache_queries",
        "Tokens of prompts that were looked up in the target's KV cache",
    ),
    "vllm:prefix_cache_hits": (
        "draftproof_prefix_cache_hits",
        "Tokens of prompts that were in the target's KV cache",
    ),
}
_GAUGES = {
    "vllm:num_requests_running": ("draftproof_requests_running", "Requests being processed"),
    "vllm:num_requests_waiting": ("draftproof_requests_waiting", "Requests in the queue"),
}
_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": (
        "draftproof_ttft_seconds",
        "Time from accepting a request to its first tokens",
    ),
    "vllm:request_time_per_output_token_seconds": (
        "draftproof_itl_seconds",
        "Time per output token after the first, per request",
    ),
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
_KV_USAGE = "vllm:kv_cache_usage_perc"
_CACHE_CONFIG = "vllm:cache_config_info"

DESCRIPTIONS = {
    **{name: text for name, (_, text) in (_COUNTERS | _GAUGES | _HISTOGRAMS).items()},
    _PER_POSITION: "Draft tokens accepted, by position in the draft",
    _KV_USAGE: "Used share of the KV blocks, of draft or target, whichever is fuller",
    _CACHE_CONFIG: "Size of the target's KV cache, as labels; always 1",
}

_READ = re.compile(r"^(?:draftproof|spec_decode)_\w+.*", re.MULTILINE)

_ENGINES_WITH_CACHE = ("target", "draft")
_ENGINES_WITH_REQUESTS = ("pair", "control")  # by one of which each request is counted

Samples = dict[str, list[Sample]]


def samples_of(published: str) -> Samples:
    """Return our own samples in a text in Prometheus' format, by name."""
    found: Samples = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(_READ.findall(published))):
        for sample in family.samples:
            found[sample.name].append(sample)
    return found


def under_vllms_names(samples: Samples, model_name: str, kv_block_size: int | None) -> Iterator[Metric]:
    """Yield the metrics of the models under vLLM's names, summed over the models.

    Those without a source are left out: engines of NVIDIA's server publish their caches elsewhere.

    Args:
        samples: Samples of the models.
        model_name: Value of vLLM's label ``model_name``.
        kv_block_size: Positions in a KV block; None if unknown.
    """
    of_model = (model_name, ENGINE)

    def family(
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        sums: Mapping[tuple[str, ...], float],
        *labels: str,
    ) -> Metric:
        made = kind(name, DESCRIPTIONS[name], labels=(*LABELS, *labels))
        for values, number in sums.items():
            made.add_metric((*of_model, *values), number)
        return made

    for name, (source, _) in _COUNTERS.items():
        yield family(CounterMetricFamily, name, _sums(samples[f"{source}_total"]))
    accepted = _sums(samples["spec_decode_num_accepted_tokens_per_pos_total"], "position")
    by_position = dict(sorted(accepted.items(), key=lambda item: int(item[0][0])))
    yield family(CounterMetricFamily, _PER_POSITION, by_position, "position")
    for name, (source, _) in _GAUGES.items():
        counted = [each for each in samples[source] if each.labels.get("engine") in _ENGINES_WITH_REQUESTS]
        yield family(GaugeMetricFamily, name, _sums(counted))
    for name, (source, _) in _HISTOGRAMS.items():
        if buckets := [(le, number) for (le,), number in _sums(samples[f"{source}_bucket"], "le").items()]:
            histogram = HistogramMetricFamily(name, DESCRIPTIONS[name], labels=LABELS)
            ordered = sorted(buckets, key=lambda bucket: float(bucket[0]))
            histogram.add_metric(of_model, ordered, _sums(samples[f"{source}_sum"])[()])
            yield histogram
    blocks = _sums(samples["draftproof_kv_blocks"], "model", "engine")
    free = _sums(samples["draftproof_kv_blocks_free"], "model", "engine")
    with_cache = [key for key in blocks if key in free and key[1] in _ENGINES_WITH_CACHE and blocks[key]]
    usages = [1 - free[key] / blocks[key] for key in with_cache]
    yield family(GaugeMetricFamily, _KV_USAGE, {(): max(usages)} if usages else {})
    of_target = [number for (_, engine), number in blocks.items() if engine == "target"]
    if of_target and kv_block_size is not None:
        sizes: tuple[str, ...] = (str(kv_block_size), f"{min(of_target):.0f}")
        yield family(GaugeMetricFamily, _CACHE_CONFIG, {sizes: 1}, "block_size", "num_gpu_blocks")


def _sums(samples: Sequence[Sample], *labels: str) -> dict[tuple[str, ...], float]:
    """Return the sums of samples with the same values of these labels; none without samples."""
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for sample in samples:
        found[tuple(sample.labels[label] for label in labels)] += sample.value
    return found
