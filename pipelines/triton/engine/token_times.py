"""Measures the time to first token and the time between later tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipelines.triton.backend.gauges import Gauges

# Seconds: from a cached prompt on a small engine to a long prompt on a busy one.
_TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5)


class TokenTimes:
    """Measures streamed answers at the moment when responses are handed to Triton.

    Args:
        gauges: Publishes the two histograms; must not be started yet.
        clock: Monotonic time in seconds.
        labels: Labels of the histograms; see ``Gauges.add_histogram``.
    """

    def __init__(self, gauges: Gauges, clock: Callable[[], float] = time.monotonic, **labels: str) -> None:
        self._observe_ttft = gauges.add_histogram("draftproof_ttft_seconds", _TTFT_BUCKETS, **labels)
        self._observe_itl = gauges.add_histogram("draftproof_itl_seconds", _ITL_BUCKETS, **labels)
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
