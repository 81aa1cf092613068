"""Figures on the metrics port: KV blocks, requests, and the counters of speculation.

Names of the counters are vLLM's, so that dashboards made for it read them. Setting a value costs a
round trip to Triton, so a thread of its own reads the figures a few times a second and passes on what
changed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.executor.executor import Executor
from pipelines.speculation.statistics import SpeculationStatistics

_LOG = logging.getLogger(__name__)

INTERVAL_S = 0.2
_MAX_UNPUBLISHED = 10_000  # values of a histogram in one interval; more are lost

_DESCRIPTIONS = {
    "draftproof_kv_blocks_free": "KV cache blocks that no request uses now",
    "draftproof_kv_blocks": "KV cache blocks that requests can use",
    "draftproof_requests_running": "Requests in work",
    "draftproof_requests_waiting": "Requests in the queue",
    "draftproof_ttft_seconds": "From taking a request to its first tokens",
    "draftproof_itl_seconds": "Time per output token after the first, per request",
    "draftproof_draft_length_total": "Rounds, by the number of draft tokens verified",
    "draftproof_output_tokens_total": "Output tokens, by where they came from",
    "draftproof_draft_failures_total": "Calls of the draft that failed",
    "draftproof_draft_available": "1 while the draft answers, 0 while requests go on without it",
    "draftproof_draft_threshold": "Probability above which a draft token is worth its cost; above 1: none is",
    "draftproof_recent_acceptance_rate": "Accepted over drafted tokens of the last minute",
    "draftproof_max_queue_size": "Requests that the queue takes; further ones are refused",
    "draftproof_memory_available_bytes": "Memory that the server may have besides, in steps of 64 MiB",
    "draftproof_router_generation": "Generation of the table of arms that the router follows; 0 without one",
    "draftproof_router_requests_open": "Requests in work over all arms, replays among them",
    "draftproof_router_weight": "Share of the requests that an arm is to answer",
    "draftproof_router_arm_out": "1 while an arm is left out because it failed",
    "draftproof_router_requests_total": "Requests, by arm and how they ended",
    "draftproof_router_fallbacks_total": "Requests that another arm answered, by the arm that was to",
    "draftproof_router_replays_total": "Requests that the candidate repeated, or had no room for",
    "draftproof_router_observations_dropped_total": "Observations that the log lacks",
    "spec_decode_num_drafts_total": "Rounds that verified draft tokens",
    "spec_decode_num_draft_tokens_total": "Draft tokens verified",
    "spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "spec_decode_num_accepted_tokens_per_pos_total": "Draft tokens accepted, by position in the draft",
}


@dataclass
class _Figure:
    metric: Any
    read: Callable[[], float]
    is_counter: bool
    last: float | None = None


class Gauges:
    """The figures of one model.

    Args:
        backend: The module ``triton_python_backend_utils``.
        model_name: Goes into the label ``model`` of each.
    """

    def __init__(self, backend: Any, model_name: str) -> None:
        self._pb = backend
        self._model_name = model_name
        self._families: dict[str, Any] = {}  # must outlive their metrics, or Triton deletes these
        self._figures: list[_Figure] = []
        self._histograms: list[tuple[Any, deque[float]]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gauges", daemon=True)

    def add(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Publish a figure; names that end in ``_total`` are counters. Before ``start`` only."""
        is_counter = name.endswith("_total")
        if name not in self._families:
            family = self._pb.MetricFamily
            kind = family.COUNTER if is_counter else family.GAUGE
            self._families[name] = family(name=name, description=_DESCRIPTIONS[name], kind=kind)
        metric = self._families[name].Metric(labels={"model": self._model_name, **labels})
        self._figures.append(_Figure(metric, read, is_counter))

    def add_histogram(self, name: str, buckets: Sequence[float]) -> Callable[[float], None]:
        """Publish a distribution; returns what takes its values, on any thread. Before ``start`` only.

        Args:
            name: Of the metric.
            buckets: Upper borders, ascending.
        """
        family = self._pb.MetricFamily
        self._families[name] = family(name=name, description=_DESCRIPTIONS[name], kind=family.HISTOGRAM)
        metric = self._families[name].Metric(labels={"model": self._model_name}, buckets=list(buckets))
        values: deque[float] = deque(maxlen=_MAX_UNPUBLISHED)
        self._histograms.append((metric, values))
        return values.append

    def start(self) -> None:
        """Publish from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Publish no more. Triton's memory goes with the model: who writes to it then, crashes."""
        self._stopping.set()
        self._thread.join()
        self._histograms.clear()
        self._figures.clear()  # metrics first: each tells Triton of its end
        self._families.clear()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            try:
                for figure in self._figures:
                    self._publish(figure)
                for metric, values in self._histograms:
                    while values:
                        metric.observe(values.popleft())
            except Exception:
                _LOG.exception("a figure could not be published; publishing ends")
                return

    def _publish(self, figure: _Figure) -> None:
        value = float(figure.read())
        if value == figure.last:
            return
        if figure.is_counter:
            figure.metric.increment(value - (figure.last or 0.0))
        else:
            figure.metric.set(value)
        figure.last = value


def watch_executor(gauges: Gauges, role: str, executor: Executor) -> None:
    """Publish what one engine holds."""
    gauges.add("draftproof_kv_blocks", lambda: executor.num_blocks, engine=role)
    gauges.add("draftproof_kv_blocks_free", lambda: executor.num_free_blocks, engine=role)
    gauges.add("draftproof_requests_running", lambda: executor.num_running, engine=role)
    gauges.add("draftproof_requests_waiting", lambda: executor.num_waiting, engine=role)


def watch_speculation(gauges: Gauges, totals: SpeculationStatistics) -> None:
    """Publish counts of all requests together."""
    for source in ("draft_model", "lookup", "target"):
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
