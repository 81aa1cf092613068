"""Stops sending requests to an arm that fails, and probes it with one request at a time.

This is Nygard's circuit breaker (Release It!, 2007). It opens after consecutive failures, the sign of an arm
that is down, or when too large a share of the latest requests failed, the sign of one that is unreliable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from pipelines.errors import (
    InvalidRequestError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    TransportError,
)

_LOG = logging.getLogger(__name__)

State = Literal["closed", "open", "half_open"]

Outcome = Literal["answered", "error", "timeout", "busy", "unreached", "refused", "cancelled"]
"""Outcome of an attempt, that is of one request to one arm:

answered    the whole answer arrived
error       the arm failed
timeout     another arm produced a token while this one was silent for too long
busy        the queue was full
unreached   the arm could not be reached, or its response could not be read
refused     the arm rejected the request as invalid
cancelled   the client disconnected, its deadline passed, or another arm was faster
"""

FAILURES: frozenset[Outcome] = frozenset({"error", "timeout"})
"""Outcomes that count against an arm, here and when a candidate is judged. Clients can cause all the others,
and must not be able to open a breaker or have a candidate rolled back."""

_NOT_THE_ARMS: tuple[tuple[type[Exception], Outcome], ...] = (
    (InvalidRequestError, "refused"),
    (RequestTimeoutError, "cancelled"),  # the client's deadline; the outcome "timeout" is the router's
    (RequestCancelledError, "cancelled"),
    (ServerBusyError, "busy"),
    (TransportError, "unreached"),
)


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome for an error; "error" if the arm caused it."""
    return next((outcome for kind, outcome in _NOT_THE_ARMS if isinstance(error, kind)), "error")


MAX_IN_A_ROW = 5
"""Consecutive failures that open a breaker."""

MAX_SHARE, MIN_OUTCOMES, MAX_OUTCOMES = 0.5, 20, 100
"""Share of failures that opens it, among the latest outcomes, and how many of these there must and may be."""

WINDOW_S = 30.0
"""Age at which an outcome no longer counts."""

FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 60.0
"""Time until the first probe, and its upper limit: the pause doubles with each failed probe, and when the arm
fails again within ``WINDOW_S`` after the breaker closed."""


class Breaker:
    """A circuit breaker. It belongs to a socket, so a promoted candidate keeps its breaker.

    All times are monotonic seconds.

    Args:
        name: Name of the arm for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=MAX_OUTCOMES)  # time, has failed
        self._num_in_a_row = 0
        self._is_open = False
        self._num_turns = 0  # how often it opened, closed or began a new pause
        self._pause_s = 0.0
        self._pause_ends_s = 0.0
        self._returned_at_s = float("-inf")
        self._has_probe = False

    def state(self, now_s: float) -> State:
        """Return the state: closed lets requests pass, open does not, half open lets one probe pass."""
        if not self._is_open:
            return "closed"
        return "open" if now_s < self._pause_ends_s else "half_open"

    def lets_through(self, now_s: float) -> bool:
        """Whether the next request may be sent to the arm."""
        state = self.state(now_s)
        return state == "closed" or (state == "half_open" and not self._has_probe)

    def begin(self, now_s: float) -> Callable[[Outcome, float], None]:
        """Record a request to the arm; one is also sent through an open breaker if no other arm is left.

        Returns:
            A function that records the outcome and when it came. Of requests that began before the latest
            change of state, it is ignored.
        """
        is_probe = self.state(now_s) == "half_open" and not self._has_probe
        self._has_probe = self._has_probe or is_probe
        return partial(self._note, self._num_turns, is_probe)

    def _note(self, num_turns: int, is_probe: bool, outcome: Outcome, now_s: float) -> None:
        if num_turns != self._num_turns:
            return
        if is_probe:
            self._has_probe = False
        has_failed = outcome in FAILURES
        if not has_failed and outcome != "answered":
            return
        if not self._is_open:
            self._count(has_failed, now_s)
        elif not has_failed:
            self._close(now_s)
        elif is_probe:
            self._pause(2 * self._pause_s, now_s)

    def _count(self, has_failed: bool, now_s: float) -> None:
        self._outcomes.append((now_s, has_failed))
        while self._outcomes[0][0] < now_s - WINDOW_S:
            self._outcomes.popleft()
        self._num_in_a_row = self._num_in_a_row + 1 if has_failed else 0
        num_failed = sum(failed for _, failed in self._outcomes)
        is_ill = len(self._outcomes) >= MIN_OUTCOMES and (num_failed >= MAX_SHARE * len(self._outcomes))
        if self._num_in_a_row >= MAX_IN_A_ROW or is_ill:
            self._open(num_failed, now_s)

    def _open(self, num_failed: int, now_s: float) -> None:
        _LOG.warning(
            "%s: breaker opened, %d of the latest %d requests failed",
            self._name,
            num_failed,
            len(self._outcomes),
        )
        self._is_open = True
        is_relapse = now_s < self._returned_at_s + WINDOW_S
        self._pause(2 * self._pause_s if is_relapse else FIRST_PAUSE_S, now_s)

    def _pause(self, pause_s: float, now_s: float) -> None:
        self._num_turns += 1
        self._pause_s = min(pause_s, LAST_PAUSE_S)
        self._pause_ends_s = now_s + self._pause_s

    def _close(self, now_s: float) -> None:
        _LOG.warning("%s: breaker closed, the arm answers again", self._name)
        self._num_turns += 1
        self._is_open = self._has_probe = False
        self._returned_at_s = now_s
        self._num_in_a_row = 0
        self._outcomes.clear()
