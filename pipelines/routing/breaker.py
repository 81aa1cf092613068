"""Takes an arm out that fails, and lets one request at a time try whether it answers again.

Nygard's circuit breaker (Release It!, 2007). It opens after failures in a row, which tell of an arm that is
down, or by their share of the latest requests, which tells of one that is ill.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Literal

_LOG = logging.getLogger(__name__)

State = Literal["closed", "open", "half_open"]

Outcome = Literal["answered", "error", "timeout", "busy", "refused", "differs", "cancelled"]
"""What became of a request that an arm was asked. Whoever asked:

answered    had the whole answer
error       had an error that is the arm's
timeout     gave up waiting for a token, because another arm had one earlier
busy        was told that the queue is full
refused     was told that the request makes no sense
differs     had tokens that are not those that the client has already
cancelled   went away: the client did, its time was over, or another arm was faster in spite of its lead
"""

_FAILURES: frozenset[Outcome] = frozenset({"error", "timeout"})


@dataclass(frozen=True)
class BreakerSetting:
    """When an arm is out, and for how long.

    Attributes:
        max_in_a_row: Failures without an answer in between.
        max_share: Of failures among the latest outcomes.
        min_outcomes: Below which no share is taken.
        max_outcomes: Latest outcomes that count.
        window_s: Age at which an outcome no longer counts.
        first_pause_s: Until an arm is tried again.
        last_pause_s: Ceiling of the pause, which doubles with each failed trial, and where an arm fails again
            within ``window_s`` after its return.
    """

    max_in_a_row: int = 5
    max_share: float = 0.5
    min_outcomes: int = 20
    max_outcomes: int = 100
    window_s: float = 30.0
    first_pause_s: float = 1.0
    last_pause_s: float = 60.0


class Breaker:
    """Of one arm, or rather of its socket: a candidate that becomes the stable pair takes its own along.

    All times are seconds on one clock that never goes back.

    Attributes:
        num_opened: Times that the arm was taken out.

    Args:
        name: For the log.
        setting: Its limits.
    """

    def __init__(self, name: str, setting: BreakerSetting | None = None) -> None:
        self.num_opened = 0
        self._name = name
        self._setting = setting or BreakerSetting()
        self._outcomes: deque[tuple[float, bool]] = deque(maxlen=self._setting.max_outcomes)  # has it failed
        self._num_in_a_row = 0
        self._is_open = False
        self._num_turns = 0  # how often it opened, closed or began a new pause
        self._pause_s = 0.0
        self._pause_ends_s = 0.0
        self._returned_at_s = float("-inf")
        self._has_probe = False

    def state(self, now_s: float) -> State:
        """Closed: the arm is in. Open: it is out. Half open: one request may try it."""
        if not self._is_open:
            return "closed"
        return "open" if now_s < self._pause_ends_s else "half_open"

    def lets_through(self, now_s: float) -> bool:
        """Whether the next request may be asked of the arm."""
        state = self.state(now_s)
        return state == "closed" or (state == "half_open" and not self._has_probe)

    def begin(self, now_s: float) -> Asked:
        """Note that the arm is asked, with its leave or, where no other arm is left, without."""
        is_probe = self.state(now_s) == "half_open" and not self._has_probe
        self._has_probe = self._has_probe or is_probe
        return Asked(self, self._num_turns, is_probe)

    def note(self, asked: Asked, outcome: Outcome, now_s: float) -> None:
        """Learn what became of it. What was asked before the latest turn tells nothing new."""
        if asked.num_turns != self._num_turns:
            return
        if asked.is_probe:
            self._has_probe = False
        has_failed = outcome in _FAILURES
        if not has_failed and outcome != "answered":
            return
        if not self._is_open:
            self._count(has_failed, now_s)
        elif not has_failed:
            self._close(now_s)
        elif asked.is_probe:
            self._pause(2 * self._pause_s, now_s)

    def _count(self, has_failed: bool, now_s: float) -> None:
        setting = self._setting
        self._outcomes.append((now_s, has_failed))
        while self._outcomes[0][0] < now_s - setting.window_s:
            self._outcomes.popleft()
        self._num_in_a_row = self._num_in_a_row + 1 if has_failed else 0
        num_failed = sum(failed for _, failed in self._outcomes)
        is_ill = len(self._outcomes) >= setting.min_outcomes and (
            num_failed >= setting.max_share * len(self._outcomes)
        )
        if self._num_in_a_row >= setting.max_in_a_row or is_ill:
            self._open(num_failed, now_s)

    def _open(self, num_failed: int, now_s: float) -> None:
        _LOG.warning(
            "%s is taken out: %d of its latest %d requests failed",
            self._name,
            num_failed,
            len(self._outcomes),
        )
        self.num_opened += 1
        self._is_open = True
        is_relapse = now_s < self._returned_at_s + self._setting.window_s
        self._pause(2 * self._pause_s if is_relapse else self._setting.first_pause_s, now_s)

    def _pause(self, pause_s: float, now_s: float) -> None:
        self._num_turns += 1
        self._pause_s = min(pause_s, self._setting.last_pause_s)
        self._pause_ends_s = now_s + self._pause_s

    def _close(self, now_s: float) -> None:
        _LOG.warning("%s answers again", self._name)
        self._num_turns += 1
        self._is_open = self._has_probe = False
        self._returned_at_s = now_s
        self._num_in_a_row = 0
        self._outcomes.clear()


@dataclass(frozen=True)
class Asked:
    """One request that an arm was asked; ``Breaker.begin`` makes it."""

    breaker: Breaker
    num_turns: int
    is_probe: bool

    def note(self, outcome: Outcome, now_s: float) -> None:
        """As ``Breaker.note``."""
        self.breaker.note(self, outcome, now_s)
