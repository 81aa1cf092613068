"""Decides when to probe speculation again while it does not pay, and with which request.

A probe is one token of the draft that is not verified but compared with the target's own token, so it costs a
step of the draft and no row. A request without margins has no such comparison: its probe is verified.
"""

from __future__ import annotations

# Rounds between probes. A probe takes up to a tenth of a round; with this pause, a change of all texts is
# followed within forty rounds (docs/decisions/0085-probes-become-rare.md).
_PAUSE = 16
# Consecutive probes of the same requests: for the first one, the draft has to read a request's whole output.
_PROBES_IN_TURN = 4
_TURNS = 4  # after which every request has been probed
# Rounds in which all requests are probed after a success. If speculation does not pay by then, it is not
# because of the draft.
_ROUNDS_OF_ALL = 8
# Rounds without probes and speculation after either was tried and did not pay. The pause doubles each time.
_FIRST_PAUSE_AFTER_FAILURE, _LAST_PAUSE_AFTER_FAILURE = 32, 512
_LEAST_SAVED = 1.0  # rounds that speculation must have saved; it costs about as much to begin and to end it


class Probing:
    """Schedules the probes of one pair at one load."""

    def __init__(self) -> None:
        self._restart()
        self.resume()
        self._probes_all = False
        self._num_tried = self._num_right = 0
        self._has_found = False

    def _restart(self) -> None:
        self._num_rounds = self._num_probes = 0
        self._is_due = False
        self._num_of_all_left = _ROUNDS_OF_ALL
        self._end_of_pause = 0
        self._pause = _FIRST_PAUSE_AFTER_FAILURE

    def resume(self) -> None:
        """Begin after rounds at another load, where speculation may have begun or ended."""
        self._was_on, self._num_saved = False, 0.0

    def _fail(self) -> None:
        self._num_of_all_left = _ROUNDS_OF_ALL
        self._end_of_pause = self._num_rounds + self._pause
        self._pause = min(2 * self._pause, _LAST_PAUSE_AFTER_FAILURE)

    @property
    def may_begin(self) -> bool:
        """Whether speculation may begin for a small gain; not soon after it was tried and did not pay."""
        return self._num_rounds >= self._end_of_pause

    @property
    def has_news(self) -> bool:
        """Whether a probe or a lookup of the last round was right."""
        return self._num_right > 0 or self._has_found

    def begin_round(self, *, is_on: bool, gain: float) -> None:
        """Begin a round.

        Args:
            is_on: Whether speculation is on in this round, or interrupted to measure the target alone.
            gain: Expected gain of this round by speculation, as a share of a round.
        """
        was_right = 0 < self._num_tried < 2 * self._num_right
        self._num_tried = self._num_right = 0
        self._has_found = self._probes_all = self._is_due = False
        if is_on:
            self._num_saved += gain
            if self._num_saved >= _LEAST_SAVED:
                self._restart()
        elif self._was_on and self._num_saved < _LEAST_SAVED:
            self._fail()
        self._was_on = is_on
        if is_on:
            return
        self._num_saved = 0.0
        self._num_rounds += 1
        if not self.may_begin:
            return
        self._is_due = self._num_rounds % _PAUSE == 0
        self._num_probes += self._is_due
        if was_right:
            self._probes_all = True
            self._num_of_all_left -= 1
            if not self._num_of_all_left:
                self._fail()

    def note(self, *, was_right: bool) -> None:
        """Record the result of a probe."""
        self._num_tried += 1
        self._num_right += was_right

    def note_lookup(self) -> None:
        """Record that a looked-up token, which nobody verified, was right."""
        self._has_found = True

    def is_turn_of(self, number: int, num_requests: int) -> bool:
        """Whether a request is probed in this round.

        A few requests are probed now and then, and all of them for some rounds after a success.

        Args:
            number: Number of the request.
            num_requests: Number of requests.
        """
        if self._probes_all:
            return True
        num_turns = min(num_requests, _TURNS)
        turn = (self._num_probes - 1) // _PROBES_IN_TURN
        return self._is_due and number % num_turns == turn % num_turns
