"""Decides when to probe speculation again while it does not pay, and with which request.

A probe is one token of the draft that is not verified but compared with the target's own token, so it costs a
step of the draft and no row. A request without margins has no such comparison: its probe is verified.
"""

from __future__ import annotations

# Rounds between probes. A probe takes a tenth of a round, so the pause doubles after each turn; with the last
# one, a change of all texts is followed within forty rounds (docs/decisions/0085-probes-become-rare.md).
_FIRST_PAUSE, _LAST_PAUSE = 4, 16
# Consecutive probes of the same requests: for the first one, the draft has to read a request's whole output.
_PROBES_IN_TURN = 4
_TURNS = 4  # after which every request has been probed


class Probing:
    """Schedules the probes of one pair."""

    def __init__(self) -> None:
        self._restart()
        self._is_promising = False
        self._num_tried = self._num_right = 0
        self._has_found = False

    def _restart(self) -> None:
        self._pause = self._rounds_left = _FIRST_PAUSE
        self._num_probes = 0
        self._is_due = False

    @property
    def has_news(self) -> bool:
        """Whether a probe or a lookup of the last round was right."""
        return self._num_right > 0 or self._has_found

    def begin_round(self, *, is_on: bool) -> None:
        """Begin a round.

        Args:
            is_on: Whether speculation is on in this round.
        """
        self._is_promising = 0 < self._num_tried < 2 * self._num_right
        self._num_tried = self._num_right = 0
        self._has_found = False
        if is_on:
            self._restart()
            return
        self._rounds_left -= 1
        self._is_due = self._rounds_left == 0
        if self._is_due:
            self._num_probes += 1
            if self._num_probes % _PROBES_IN_TURN == 0:
                self._pause = min(2 * self._pause, _LAST_PAUSE)
            self._rounds_left = self._pause

    def note(self, *, was_right: bool) -> None:
        """Record the result of a probe."""
        self._num_tried += 1
        self._num_right += was_right

    def note_lookup(self) -> None:
        """Record that a looked-up token, which nobody verified, was right."""
        self._has_found = True

    def is_turn_of(self, number: int, num_requests: int) -> bool:
        """Whether a request is probed in this round.

        A few requests are probed now and then, less and less often, and all of them after a success.

        Args:
            number: Number of the request.
            num_requests: Number of requests.
        """
        if self._is_promising:
            return True
        num_turns = min(num_requests, _TURNS)
        turn = (self._num_probes - 1) // _PROBES_IN_TURN
        return self._is_due and number % num_turns == turn % num_turns
