"""Publishes metrics on Triton's metrics port: KV blocks, requests and the counters of speculation.

Setting a value costs a round trip to Triton, so a thread reads the figures five times a second and publishes
only those that changed. What vLLM publishes too has its names and labels, which dashboards and the endpoint
pickers of Kubernetes gateways read: ``vllm/v1/metrics/loggers.py`` and ``vllm/v1/spec_decode/metrics.py`` of
vLLM 0.32.0, and ``docs/proposals/003-model-server-protocol`` of the Gateway API's inference extension.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LOG = logging.getLogger(__name__)

INTERVAL_S = 0.2
_STATM = Path("/proc/self/statm")  # man 5 proc
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_RESIDENT_STEP = 1 << 20
_CPU_STEP_S = 0.01
_MAX_UNPUBLISHED = 10_000  # histogram values per interval; the oldest beyond that are lost

# Seconds: from a cached prompt on a small engine to a long prompt on a busy one.
_TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)

_DESCRIPTIONS = {
    "draftproof_kv_blocks_free": "KV cache blocks that no request uses",
    "draftproof_kv_blocks": "KV cache blocks in total",
    "draftproof_requests_running": "Requests being processed",
    "draftproof_requests_waiting": "Requests in the queue",
    "draftproof_draft_length_total": "Rounds, by the number of draft tokens verified",
    "draftproof_output_tokens_total": "Output tokens, by source",
    "draftproof_draft_failures_total": "Failed calls of the draft",
    "draftproof_draft_refusals_total": "Requests that the draft refused and that continued without it",
    "draftproof_draft_available": "1 while the draft works, 0 while requests continue without it",
    "draftproof_expected_draft_tokens": "Draft tokens that the latest round was to have for each request",
    "draftproof_recent_acceptance_rate": "Accepted over drafted tokens of about the last minute",
    "draftproof_max_queue_size": "Capacity of the queue; the server refuses requests beyond it",
    "draftproof_prompt_tokens_total": "Tokens of prompts, by where their keys and values came from",
    "draftproof_prompt_cache_bytes": "Bytes of the prompt cache on disk",
    "draftproof_prompt_cache_saved_seconds_total": "Time to compute what was read from it, less that to read",
    "draftproof_prompt_cache_damaged_total": "Files of the prompt cache that were not whole, and removed",
    "draftproof_prompt_cache_failures_total": "Reads and writes of the prompt cache that the disk refused",
    "draftproof_prompt_cache_left_out_total": "KV blocks that were evicted before they were on disk",
    "draftproof_process_resident_memory_bytes": "Resident memory of the model's process, in steps of 1 MiB",
    "draftproof_process_cpu_seconds_total": "CPU time of the model's process, in steps of 10 ms",
    "draftproof_control_cpu_seconds_total": "Part of it in steps for the target alone, in steps of 10 ms",
    "draftproof_router_arm_out": "1 while the text model avoids an arm because it failed",
    "vllm:cache_config_info": "Size of the target's KV cache, as labels; always 1",
    "vllm:generation_tokens_total": "Output tokens",
    "vllm:kv_cache_usage_perc": "Used share of the KV blocks, of draft or target, whichever is fuller",
    "vllm:num_requests_running": "Requests being processed",
    "vllm:num_requests_waiting": "Requests in the queue",
    "vllm:prefix_cache_queries_total": "Tokens of prompts that were looked up in the target's KV cache",
    "vllm:prefix_cache_hits_total": "Tokens of prompts that were in the target's KV cache",
    "vllm:request_time_per_output_token_seconds": "Time per output token after the first, per request",
    "vllm:spec_decode_num_drafts_total": "Rounds that verified draft tokens",
    "vllm:spec_decode_num_draft_tokens_total": "Draft tokens verified",
    "vllm:spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "Draft tokens accepted, by position in the draft",
    "vllm:time_to_first_token_seconds": "Time from accepting a request to its first tokens",
}


class Gauges:
    """Publishes the figures of one model.

    Args:
        backend: The module ``triton_python_backend_utils``.
        model_name: Value of the label ``model``.
        served_model_name: Name that clients send as ``model``, of vLLM's label ``model_name``.
    """

    def __init__(self, backend: Any, model_name: str, served_model_name: str = "") -> None:
        self._pb = backend
        self._labels = {"model": model_name}
        # vLLM's label ``engine``: this server is one engine to its clients.
        self._vllms_labels = {**self._labels, "model_name": served_model_name, "engine": "0"}
        # These must outlive their metrics, which Triton deletes with their family.
        self._families: dict[str, Any] = {}
        self._figures: list[_Figure] = []
        self._histograms: list[tuple[Any, deque[float]]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def add(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Publish a figure. Call this before ``start``.

        Args:
            name: Name of the metric; one that ends in ``_total`` is a counter.
            read: Returns the value.
            labels: Labels besides ``model``.
        """
        kinds = self._pb.MetricFamily
        family = self._family(name, kinds.COUNTER if name.endswith("_total") else kinds.GAUGE)
        metric = family.Metric(labels={**self._labels_of(name), **labels})
        self._figures.append(_Figure(name, metric, read))

    def add_histogram(self, name: str, buckets: Sequence[float]) -> Callable[[float], None]:
        """Publish a histogram. Call this before ``start``.

        Args:
            name: Name of the metric.
            buckets: Upper bounds, ascending.

        Returns:
            A function that adds a value and may be called on any thread.
        """
        family = self._family(name, self._pb.MetricFamily.HISTOGRAM)
        metric = family.Metric(labels=self._labels_of(name), buckets=list(buckets))
        values: deque[float] = deque(maxlen=_MAX_UNPUBLISHED)
        self._histograms.append((metric, values))
        return values.append

    def _labels_of(self, name: str) -> dict[str, str]:
        return self._vllms_labels if name.startswith("vllm:") else self._labels

    def _family(self, name: str, kind: Any) -> Any:
        if name not in self._families:
            made = self._pb.MetricFamily(name=name, description=_DESCRIPTIONS[name], kind=kind)
            self._families[name] = made
        return self._families[name]

    def start(self) -> None:
        """Start publishing, including memory and CPU time of this process."""
        self.add("draftproof_process_resident_memory_bytes", _resident_bytes)
        self.add("draftproof_process_cpu_seconds_total", _cpu_seconds)
        self._thread.start()

    def stop(self) -> None:
        """Stop publishing. Triton frees its memory with the model, and a write after that would crash."""
        self._stopping.set()
        self._thread.join()
        self._histograms.clear()
        self._figures.clear()  # before their families: each metric unregisters itself with Triton
        self._families.clear()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            for figure in self._figures:
                figure.publish()
            for metric, values in self._histograms:
                try:
                    while values:
                        metric.observe(values.popleft())
                except Exception:
                    _LOG.exception("a value of a histogram was lost")


@dataclass
class _Figure:
    name: str
    metric: Any
    read: Callable[[], float]
    last: float | None = None
    has_failed: bool = False

    def publish(self) -> None:
        """Publish the figure if it has changed. A failure is logged once, until the figure recovers."""
        try:
            value = float(self.read())
            if not self.name.endswith("_total"):
                if value != self.last:
                    self.metric.set(value)
                    self.last = value
            elif self.last is None or value > self.last:  # a step below 0 would end the process with a fault
                self.metric.increment(value - (self.last or 0.0))
                self.last = value
        except Exception:
            if not self.has_failed:
                _LOG.exception("metric %s could not be published; retrying", self.name)
            self.has_failed = True
        else:
            if self.has_failed:
                _LOG.warning("metric %s is published again", self.name)
            self.has_failed = False


# Both are rounded down to steps, since each change costs a round trip to Triton.


def _resident_bytes() -> float:
    pages = int(_STATM.read_text(encoding="ascii").split()[1])
    return float(pages * _PAGE_BYTES // _RESIDENT_STEP * _RESIDENT_STEP)


def _cpu_seconds() -> float:
    return time.process_time() // _CPU_STEP_S * _CPU_STEP_S


class TokenTimes:
    """Measures the time to first token and between later ones, when responses are handed on.

    Args:
        gauges: Publishes the two histograms; must not be started yet.
        clock: Monotonic time in seconds.
    """

    def __init__(self, gauges: Gauges, clock: Callable[[], float] = time.monotonic) -> None:
        self._observe_ttft = gauges.add_histogram("vllm:time_to_first_token_seconds", _TTFT_BUCKETS)
        self._observe_itl = gauges.add_histogram("vllm:request_time_per_output_token_seconds", _ITL_BUCKETS)
        self._clock = clock

    def begin(self) -> Callable[[int, bool], None]:
        """Record the arrival of a request.

        Returns:
            A function to call for each response with the output tokens so far and whether it is the last.
        """
        taken_s = self._clock()
        first_s: float | None = None
        num_first = 0

        def note(num_tokens: int, is_final: bool) -> None:
            nonlocal first_s, num_first
            now_s = self._clock()
            if first_s is None and num_tokens:
                first_s, num_first = now_s, num_tokens
                self._observe_ttft(now_s - taken_s)
            if is_final and first_s is not None and num_tokens > num_first:
                self._observe_itl((now_s - first_s) / (num_tokens - 1))

        return note
