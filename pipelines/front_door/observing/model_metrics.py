"""Publishes the metrics of a server's models under vLLM's names, summed over its models.

Dashboards and the endpoint pickers of Kubernetes gateways read these names. Sources:
``vllm/v1/metrics/loggers.py`` and ``vllm/v1/spec_decode/metrics.py`` of vLLM 0.32.0, and
``docs/proposals/003-model-server-protocol`` of kubernetes-sigs/gateway-api-inference-extension.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

LABELS = ("model_name", "engine")
ENGINE = "0"
"""Value of vLLM's label ``engine``: this server is one engine to its clients."""

# vLLM's name -> ours and the description.
_COUNTERS = {
    "vllm:spec_decode_num_drafts": ("spec_decode_num_drafts_total", "Rounds that verified draft tokens"),
    "vllm:spec_decode_num_draft_tokens": ("spec_decode_num_draft_tokens_total", "Draft tokens verified"),
    "vllm:spec_decode_num_accepted_tokens": (
        "spec_decode_num_accepted_tokens_total",
        "Draft tokens accepted",
    ),
    "vllm:generation_tokens": ("draftproof_output_tokens_total", "Output tokens"),
    "vllm:prefix_cache_queries": (
        "draftproof_prefix_cache_queries_total",
        "Tokens of prompts that were looked up in the target's KV cache",
    ),
    "vllm:prefix_cache_hits": (
        "draftproof_prefix_cache_hits_total",
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

# The parts of a pair that hold a cache; requests are counted once, by the pair or by the target alone.
_ENGINES_WITH_CACHE = ("target", "draft")
_ENGINES_WITH_REQUESTS = ("pair", "control")

Samples = dict[str, list[Sample]]


def samples_of(published: str) -> Samples:
    """Return our own samples in a text in Prometheus' format, by name."""
    found: Samples = defaultdict(list)
    for family in text_string_to_metric_families("\n".join(_READ.findall(published))):
        for sample in family.samples:
            found[sample.name].append(sample)
    return found


def under_vllms_names(samples: Samples, model_name: str, kv_block_size: int | None) -> Iterator[Metric]:
    """Yield the metrics of the models under vLLM's names.

    Those without a source are left out: engines of NVIDIA's server publish their caches elsewhere.

    Args:
        samples: Samples of the models.
        model_name: Value of vLLM's label ``model_name``.
        kv_block_size: Positions in a KV block; None if unknown.
    """
    of_model = (model_name, ENGINE)

    def one(kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, value: float) -> Metric:
        family = kind(name, DESCRIPTIONS[name], labels=LABELS)
        family.add_metric(of_model, value)
        return family

    for name, (source, _) in _COUNTERS.items():
        if source in samples:
            yield one(CounterMetricFamily, name, _sum(samples[source]))
    accepted = CounterMetricFamily(_PER_POSITION, DESCRIPTIONS[_PER_POSITION], labels=(*LABELS, "position"))
    by_position = _by(samples["spec_decode_num_accepted_tokens_per_pos_total"], "position")
    for position, each in sorted(by_position.items(), key=lambda item: int(item[0])):
        accepted.add_metric((*of_model, position), _sum(each))
    yield accepted
    for name, (source, _) in _GAUGES.items():
        counted = [each for each in samples[source] if each.labels.get("engine") in _ENGINES_WITH_REQUESTS]
        if counted:
            yield one(GaugeMetricFamily, name, _sum(counted))
    for name, (source, _) in _HISTOGRAMS.items():
        by_bound = _by(samples[f"{source}_bucket"], "le")
        if by_bound:
            histogram = HistogramMetricFamily(name, DESCRIPTIONS[name], labels=LABELS)
            buckets = [(bound, _sum(by_bound[bound])) for bound in sorted(by_bound, key=float)]
            histogram.add_metric(of_model, buckets, _sum(samples[f"{source}_sum"]))
            yield histogram
    num_blocks, num_free = (
        _of_engines(samples["draftproof_kv_blocks"]),
        _of_engines(samples["draftproof_kv_blocks_free"]),
    )
    with_cache = [key for key in num_blocks if key in num_free and key[1] in _ENGINES_WITH_CACHE]
    if usages := [1 - num_free[key] / num_blocks[key] for key in with_cache if num_blocks[key]]:
        yield one(GaugeMetricFamily, _KV_USAGE, max(usages))
    of_target = [number for (_, engine), number in num_blocks.items() if engine == "target"]
    if of_target and kv_block_size is not None:
        sizes = ("block_size", "num_gpu_blocks")
        config = GaugeMetricFamily(_CACHE_CONFIG, DESCRIPTIONS[_CACHE_CONFIG], labels=(*LABELS, *sizes))
        config.add_metric((*of_model, str(kv_block_size), f"{min(of_target):.0f}"), 1)
        yield config


def _of_engines(samples: list[Sample]) -> dict[tuple[str, str], float]:
    """Return values by model and engine."""
    return {(each.labels["model"], each.labels["engine"]): each.value for each in samples}


def _by(samples: list[Sample], label: str) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.labels[label]].append(sample)
    return found


def _sum(samples: list[Sample]) -> float:
    return sum(sample.value for sample in samples)
