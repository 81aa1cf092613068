"""Decides when to probe speculation again while it does not pay, and with which request.

A probe is one token of the draft that is not verified but compared with the target's own token, so it costs a
step of the draft and no row.
"""

from __future__ import annotations

# Rounds between probes, first and later. A probe takes a tenth of a round; with fewer probes, a change of the
# text is not noticed within ten rounds (docs/decisions/0033-what-off-still-costs.md).
_INTERVAL = 4
_LATER_INTERVAL, _LONG_OFF = 8, 32
_TURNS = 4  # after which every request has been probed
# Probes per turn: for the first one, the draft has to read the request's whole output so far.
_TRIALS_IN_TURN = 4
_BLIND_INTERVAL = 16  # without margins, a probe takes a row


class Probing:
    """Schedules the probes of one pair.

    Attributes:
        num_rounds_off: Rounds since speculation last paid.
    """

    def __init__(self) -> None:
        self.num_rounds_off = 0
        self._is_promising = False
        self._num_tried = self._num_right = 0

    @property
    def has_news(self) -> bool:
        """Whether a probe of the last round was accepted."""
        return self._num_right > 0

    def begin_round(self, *, is_on: bool) -> None:
        """Begin a round.

        Args:
            is_on: Whether speculation is on in this round.
        """
        self._is_promising = 0 < self._num_tried < 2 * self._num_right
        self._num_tried = self._num_right = 0
        self.num_rounds_off = 0 if is_on else self.num_rounds_off + 1

    def note(self, *, was_right: bool) -> None:
        """Record the result of a probe."""
        self._num_tried += 1
        self._num_right += was_right

    def is_turn_of(self, number: int, num_requests: int, *, sees_margins: bool) -> bool:
        """Whether a request is probed in this round.

        A few requests are probed now and then, less often after a while, and all of them after a success.

        Args:
            number: Number of the request.
            num_requests: Number of requests.
            sees_margins: Whether its tokens have margins.
        """
        if not sees_margins:
            return self.num_rounds_off % _BLIND_INTERVAL == 0
        if self._is_promising:
            return True
        interval = _LATER_INTERVAL if self.num_rounds_off > _LONG_OFF else _INTERVAL
        turn, is_between = divmod(self.num_rounds_off, interval)
        num_turns = min(num_requests, _TURNS)
        return not is_between and number % num_turns == turn // _TRIALS_IN_TURN % num_turns
