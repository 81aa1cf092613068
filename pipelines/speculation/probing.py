"""When speculation that does not pay is tried again, and with which request.

A trial is one token that the draft proposes and nobody verifies: it is compared with what the target says
anyway, so it costs a step of the draft and no row.
"""

from __future__ import annotations

# Rounds without speculation after which it is tried, and so after a while. A trial takes a tenth of a round;
# with fewer a change of the text is not followed within ten (docs/decisions/0033-what-off-still-costs.md).
_INTERVAL = 4
_LATER_INTERVAL, _LONG_OFF = 8, 32
_TURNS = 4  # in which all requests had theirs
# Trials of a turn: the first one costs a step of the draft over all that a request has said so far.
_TRIALS_IN_TURN = 4
_BLIND_INTERVAL = 16  # without margins a trial takes a row


class Probing:
    """Of one pair.

    Attributes:
        num_rounds_off: Rounds since speculation last paid.
    """

    def __init__(self) -> None:
        self.num_rounds_off = 0
        self._is_promising = False
        self._num_tried = self._num_right = 0

    @property
    def has_news(self) -> bool:
        """Whether a token that was tried in the last round was right."""
        return self._num_right > 0

    def begin_round(self, *, is_on: bool) -> None:
        """Take note of what the last round showed.

        Args:
            is_on: Whether speculation pays in the round that begins.
        """
        self._is_promising = 0 < self._num_tried < 2 * self._num_right
        self._num_tried = self._num_right = 0
        self.num_rounds_off = 0 if is_on else self.num_rounds_off + 1

    def note(self, *, was_right: bool) -> None:
        """Count a token that was tried."""
        self._num_tried += 1
        self._num_right += was_right

    def is_turn_of(self, number: int, num_requests: int, *, sees_margins: bool) -> bool:
        """Whether a request is tried in this round.

        A few of them now and then, less often after a while, and all of them after it went well.

        Args:
            number: Of the request.
            num_requests: How many there are.
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
