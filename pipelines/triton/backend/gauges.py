"""Publishes metrics on Triton's metrics port: KV blocks, requests and the counters of speculation.

Setting a value costs a round trip to Triton, so a thread reads the figures five times a second and publishes
only those that changed. The front door publishes some of them under vLLM's names.
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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the processes of the text models have no engine
    from pipelines.executor.executor import Executor
    from pipelines.speculation.statistics import SpeculationStatistics

_LOG = logging.getLogger(__name__)

INTERVAL_S = 0.2
_STATM = Path("/proc/self/statm")  # man 5 proc
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_RESIDENT_STEP = 1 << 20
_CPU_STEP_S = 0.01
_MAX_UNPUBLISHED = 10_000  # histogram values per interval; the oldest beyond that are lost

_DESCRIPTIONS = {
    "draftproof_kv_blocks_free": "KV cache blocks that no request uses",
    "draftproof_kv_blocks": "KV cache blocks in total",
    "draftproof_requests_running": "Requests being processed",
    "draftproof_requests_waiting": "Requests in the queue",
    "draftproof_ttft_seconds": "Time from accepting a request to its first tokens",
    "draftproof_itl_seconds": "Time per output token after the first, per request",
    "draftproof_draft_length_total": "Rounds, by the number of draft tokens verified",
    "draftproof_output_tokens_total": "Output tokens, by source",
    "draftproof_draft_failures_total": "Failed calls of the draft",
    "draftproof_draft_refusals_total": "Requests that the draft refused and that continued without it",
    "draftproof_draft_available": "1 while the draft works, 0 while requests continue without it",
    "draftproof_expected_draft_tokens": "Draft tokens that the latest round was to have for each request",
    "draftproof_recent_acceptance_rate": "Accepted over drafted tokens of the last minute",
    "draftproof_max_queue_size": "Capacity of the queue; the server refuses requests beyond it",
    "draftproof_prefix_cache_queries_total": "Tokens of prompts that were looked up in the KV cache",
    "draftproof_prefix_cache_hits_total": "Tokens of prompts that were in the KV cache",
    "draftproof_process_resident_memory_bytes": "Resident memory of the model's process, in steps of 1 MiB",
    "draftproof_process_cpu_seconds_total": "CPU time of the model's process, in steps of 10 ms",
    "draftproof_control_cpu_seconds_total": "Part of it in steps for the target alone, in steps of 10 ms",
    "draftproof_router_requests_open": "Requests to the text model being processed",
    "draftproof_router_arm_out": "1 while the text model avoids an arm because it failed",
    "draftproof_router_fallbacks_total": "Requests to it that another arm answered, by the arm they left",
    "draftproof_router_requests_total": "Requests to the text model, by arm and outcome",
    "spec_decode_num_drafts_total": "Rounds that verified draft tokens",
    "spec_decode_num_draft_tokens_total": "Draft tokens verified",
    "spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "spec_decode_num_accepted_tokens_per_pos_total": "Draft tokens accepted, by position in the draft",
}


@dataclass
class _Figure:
    name: str
    metric: Any
    read: Callable[[], float]
    is_counter: bool
    last: float | None = None
    has_failed: bool = False


class Gauges:
    """Publishes the figures of one model.

    Args:
        backend: The module ``triton_python_backend_utils``.
        model_name: Value of the label ``model``.
    """

    def __init__(self, backend: Any, model_name: str) -> None:
        self._pb = backend
        self._model_name = model_name
        self._families: dict[
            str, Any
        ] = {}  # must outlive their metrics: Triton deletes these with their family
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
        is_counter = name.endswith("_total")
        if name not in self._families:
            family = self._pb.MetricFamily
            kind = family.COUNTER if is_counter else family.GAUGE
            self._families[name] = family(name=name, description=_DESCRIPTIONS[name], kind=kind)
        metric = self._families[name].Metric(labels={"model": self._model_name, **labels})
        self._figures.append(_Figure(name, metric, read, is_counter))

    def add_histogram(self, name: str, buckets: Sequence[float], **labels: str) -> Callable[[float], None]:
        """Publish a histogram. Call this before ``start``.

        Args:
            name: Name of the metric.
            buckets: Upper bounds, ascending.
            labels: Labels besides ``model``; a ``model`` among them replaces this one's name.

        Returns:
            A function that adds a value and may be called on any thread.
        """
        if name not in self._families:
            family = self._pb.MetricFamily
            self._families[name] = family(name=name, description=_DESCRIPTIONS[name], kind=family.HISTOGRAM)
        labels = {"model": self._model_name, **labels}
        metric = self._families[name].Metric(labels=labels, buckets=list(buckets))
        values: deque[float] = deque(maxlen=_MAX_UNPUBLISHED)
        self._histograms.append((metric, values))
        return values.append

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
                self._try_to_publish(figure)
            for metric, values in self._histograms:
                self._observe(metric, values)

    def _try_to_publish(self, figure: _Figure) -> None:
        """Publish one figure. A failure leaves the others alone and is logged once, until it recovers."""
        try:
            self._publish(figure)
        except Exception:
            if not figure.has_failed:
                _LOG.exception("metric %s could not be published; retrying", figure.name)
            figure.has_failed = True
        else:
            if figure.has_failed:
                _LOG.warning("metric %s is published again", figure.name)
            figure.has_failed = False

    def _publish(self, figure: _Figure) -> None:
        value = float(figure.read())
        if value == figure.last:
            return
        if figure.is_counter:
            figure.metric.increment(value - (figure.last or 0.0))
        else:
            figure.metric.set(value)
        figure.last = value

    def _observe(self, metric: Any, values: deque[float]) -> None:
        try:
            while values:
                metric.observe(values.popleft())
        except Exception:
            _LOG.exception("a value of a histogram was lost")


# Both are rounded down to steps, since each change costs a round trip to Triton.


def _resident_bytes() -> float:
    pages = int(_STATM.read_text(encoding="ascii").split()[1])
    return float(pages * _PAGE_BYTES // _RESIDENT_STEP * _RESIDENT_STEP)


def _cpu_seconds() -> float:
    return time.process_time() // _CPU_STEP_S * _CPU_STEP_S


def watch_executor(gauges: Gauges, role: str, executor: Executor) -> None:
    """Publish the KV blocks and requests of one engine."""
    scheduler = executor.scheduler
    gauges.add("draftproof_kv_blocks", lambda: scheduler.num_blocks, engine=role)
    gauges.add("draftproof_kv_blocks_free", lambda: scheduler.num_free_blocks, engine=role)
    gauges.add("draftproof_requests_running", lambda: scheduler.num_running, engine=role)
    gauges.add("draftproof_requests_waiting", lambda: scheduler.num_waiting, engine=role)
    if role == "target":  # the draft begins anew for each proposal
        gauges.add("draftproof_prefix_cache_queries_total", lambda: scheduler.num_looked_up, engine=role)
        gauges.add("draftproof_prefix_cache_hits_total", lambda: scheduler.num_found, engine=role)


def watch_speculation(gauges: Gauges, totals: SpeculationStatistics) -> None:
    """Publish the counts of speculation over all requests."""
    for source in ("grammar", "draft_model", "lookup", "target"):
        gauges.add(
            "draftproof_output_tokens_total",
            lambda source=source: totals.tokens_by_source[source],  # type: ignore[misc]
            source=source,
        )
    for length in range(totals.max_draft_len + 1):
        gauges.add(
            "draftproof_draft_length_total",
            lambda length=length: totals.rounds_by_length[length],  # type: ignore[misc]
            num_draft_tokens=str(length),
        )
    gauges.add("spec_decode_num_drafts_total", lambda: totals.num_drafting_rounds)
    gauges.add("spec_decode_num_draft_tokens_total", lambda: totals.total_draft_tokens)
    gauges.add("spec_decode_num_accepted_tokens_total", lambda: totals.total_accepted_draft_tokens)
    for position in range(totals.max_draft_len):
        gauges.add(
            "spec_decode_num_accepted_tokens_per_pos_total",
            lambda position=position: totals.accepted_per_position[position],  # type: ignore[misc]
            position=str(position),
        )
