"""Measure the time of one decode step of the target against the time of reading its weights.

With one request a step cannot be faster than its weights are read from memory. The step is measured through
the whole server: from the difference between answers of many tokens and of one token, without streaming.
Bandwidth is measured before and after each, because it varies on shared machines.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipelines.bench.arms import TARGET_ALONE
from pipelines.bench.costs.memory_bandwidth import METHOD, MemoryBandwidth, measure_memory_bandwidth
from pipelines.client import CompletionRequest
from pipelines.client.workers import Ask
from pipelines.errors import VerificationError


@dataclass(frozen=True)
class DecodeStep:
    """Time of a decode step and its lower bound.

    Attributes:
        step_ms: Milliseconds per output token with one request; median over the requests.
        floor_ms: Milliseconds for reading ``weight_bytes`` once.
        weight_bytes: Least number of bytes of weights that a step reads.
        bandwidth_gb_per_s: Median of the bandwidth measurements, in 10**9 bytes per second.
        bandwidth_range_gb_per_s: Least and greatest of these.
        num_threads: Number of threads of the bandwidth measurement and of the engine.
        method: Method of the bandwidth measurement.
    """

    step_ms: float
    floor_ms: float
    weight_bytes: int
    bandwidth_gb_per_s: float
    bandwidth_range_gb_per_s: tuple[float, float]
    num_threads: int
    method: str = METHOD

    @property
    def ratio(self) -> float:
        """Ratio of step to floor; 1 would be a step that only reads weights."""
        return self.step_ms / self.floor_ms


def measure_decode_step(
    ask: Ask,
    requests: Sequence[CompletionRequest],
    max_tokens: int,
    weight_bytes: int,
    num_threads: int,
    measure_bandwidth: Callable[[int], MemoryBandwidth] = measure_memory_bandwidth,
) -> DecodeStep:
    """Measure step and bandwidth alternately, once per request.

    Args:
        ask: Sends one request without streaming, such as ``Client.generate``.
        requests: Requests, at least one.
        max_tokens: Length of the long answers, at least 2.
        weight_bytes: ``weight_bytes_per_step`` of the target's engine.json.
        num_threads: ``num_threads`` of the same file.
        measure_bandwidth: Measures the bandwidth; tests replace it.

    Raises:
        VerificationError: No answer had two tokens.
        DraftproofError: A request failed.
    """
    bandwidths = [measure_bandwidth(num_threads).bytes_per_s]
    steps = []
    for request in requests:
        short = ask(replace(request, max_tokens=1), TARGET_ALONE.model)
        long = ask(replace(request, max_tokens=max_tokens), TARGET_ALONE.model)
        num_steps = long.num_output_tokens - short.num_output_tokens
        if num_steps > 0:
            steps.append((long.e2e_latency_s - short.e2e_latency_s) / num_steps)
        bandwidths.append(measure_bandwidth(num_threads).bytes_per_s)
    if not steps:
        raise VerificationError(
            "the decode step cannot be measured",
            values=f"{len(requests)} requests, max_tokens={max_tokens}",
            limit="at least one answer of two tokens",
            remedy="raise --max-tokens or use other prompts",
        )
    bandwidth = statistics.median(bandwidths)
    return DecodeStep(
        step_ms=1e3 * statistics.median(steps),
        floor_ms=1e3 * weight_bytes / bandwidth,
        weight_bytes=weight_bytes,
        bandwidth_gb_per_s=bandwidth / 1e9,
        bandwidth_range_gb_per_s=(min(bandwidths) / 1e9, max(bandwidths) / 1e9),
        num_threads=num_threads,
    )
