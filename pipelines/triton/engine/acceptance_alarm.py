"""Measures the acceptance rate of the last minute and warns when the draft does not fit the traffic."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

_LOG = logging.getLogger(__name__)

WINDOW_S = 60.0
UNFIT_BELOW = 0.3
FIT_ABOVE = 0.4  # the rate must exceed this before the alarm can be raised again
LEAST_DRAFT_TOKENS = 500


class AcceptanceAlarm:
    """Watches the acceptance rate of a server.

    The loop counts rounds while the thread that publishes gauges reads the rate.

    Attributes:
        is_unfit: Whether the alarm is raised.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_unfit = False
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: deque[tuple[int, int, int]] = deque()  # second, drafted, accepted
        self._num_drafted = 0
        self._num_accepted = 0

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens of the last minute; None if nothing was drafted."""
        with self._lock:
            self._forget()
            return self._num_accepted / self._num_drafted if self._num_drafted else None

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one round."""
        if not num_draft_tokens:
            return
        with self._lock:
            self._forget()
            second = int(self._clock())
            if self._seconds and self._seconds[-1][0] == second:
                _, drafted, accepted = self._seconds.pop()
            else:
                drafted = accepted = 0
            self._seconds.append((second, drafted + num_draft_tokens, accepted + num_accepted_tokens))
            self._num_drafted += num_draft_tokens
            self._num_accepted += num_accepted_tokens
            if self._num_drafted >= LEAST_DRAFT_TOKENS:
                self._judge(self._num_accepted / self._num_drafted)

    def _judge(self, rate: float) -> None:
        if rate < UNFIT_BELOW and not self.is_unfit:
            self.is_unfit = True
            _LOG.warning(
                "the draft does not fit this traffic: %.0f %% of %d draft tokens were accepted in the last "
                "minute; below %.0f %% drafting seldom pays. Train or choose a draft closer to the target, "
                "or set num_draft_tokens: 0 in the recipe",
                100 * rate,
                self._num_drafted,
                100 * UNFIT_BELOW,
            )
        elif rate > FIT_ABOVE:
            self.is_unfit = False

    def _forget(self) -> None:
        oldest = self._clock() - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest:
            _, drafted, accepted = self._seconds.popleft()
            self._num_drafted -= drafted
            self._num_accepted -= accepted
