"""Decides when to try speculation again while it does not pay, and with which requests.

A probe is one token of the draft that is not verified but compared with the target's own token, so it costs a
step of the draft and no row. A request without margins has no such comparison: its probe is verified.
"""

from __future__ import annotations

# Rounds between probes. A probe takes up to a tenth of a round; with this pause, a change of all texts is
# followed within forty rounds, except soon after a failure (docs/decisions/draft-length.md).
_PAUSE = 16
# The same soon after speculation did not pay: then only a clear gain counts.
_PAUSE_AFTER_FAILURE = 64
# Consecutive probes of the same requests: for the first one, the draft has to read a request's whole output.
_PROBES_IN_TURN = 4
_TURNS = 4  # after which every request has been probed
# Rounds in which all requests are probed after a probe was right. If speculation does not pay by then, it is
# not because of the draft.
_ROUNDS_OF_ALL = 8
# Rounds after a failure without speculation for a small gain. Their number doubles each time.
_FIRST_REST, _LAST_REST = 32, 512
# Rounds that speculation must promise to save: it costs about as much to begin and to end it.
_LEAST_SAVED = 1.0
# Rounds between two measurements of the target alone. Their number doubles, too.
_FIRST_CHECK, _LAST_CHECK = 32, 512


class Probing:
    """Schedules the trials of one pair at one load.

    Attributes:
        was_trying: Whether speculation was on in the last round, or interrupted to measure the target alone.
    """

    def __init__(self) -> None:
        self._num_saved = 0.0
        self._num_played = self._next_check = 0
        self._pause_of_checks = _FIRST_CHECK
        self._pay()
        self.forget_round()

    def forget_round(self) -> None:
        """Forget the last round: it was another one's, or the next one begins."""
        self.was_trying = self._is_due = self._probes_all = self._has_found = False
        self._num_tried = self._num_right = 0

    def note_idle(self) -> None:
        """Record that no request is left. The next one may bring another text, which is tried at once."""
        self.forget_round()
        self._end_of_rest = 0

    def note_error(self) -> None:
        """Record that the gain was an error of the cost model, so that nothing was saved."""
        self._num_saved = 0.0

    def _pay(self) -> None:
        self._num_rounds = self._num_probes = 0
        self._num_of_all_left = _ROUNDS_OF_ALL
        self._end_of_rest = 0
        self._rest = _FIRST_REST

    def _fail(self) -> None:
        self._num_of_all_left = _ROUNDS_OF_ALL
        self._end_of_rest = self._num_rounds + self._rest
        self._rest = min(2 * self._rest, _LAST_REST)

    @property
    def may_begin(self) -> bool:
        """Whether speculation may begin for a small gain; not soon after it was tried and did not pay."""
        return self._num_rounds >= self._end_of_rest

    @property
    def may_check(self) -> bool:
        """Whether speculation may be interrupted to measure the target alone; less and less often."""
        return self._num_played >= self._next_check

    def note_check(self) -> None:
        """Record that the target alone is measured now."""
        self._next_check = self._num_played + self._pause_of_checks
        self._pause_of_checks = min(2 * self._pause_of_checks, _LAST_CHECK)

    @property
    def has_news(self) -> bool:
        """Whether a probe or a lookup of the last round was right."""
        return self._num_right > 0 or self._has_found

    def begin_round(self, *, is_trying: bool, gain: float) -> None:
        """Begin a round.

        Args:
            is_trying: Whether speculation is on in this round, or interrupted to measure the target alone.
            gain: Expected gain of this round by speculation, as a share of a round.
        """
        num_tried, num_right = self._num_tried, self._num_right
        was_trying = self.was_trying
        self.forget_round()
        self.was_trying = is_trying
        self._num_played += 1
        if is_trying:
            self._num_saved += gain
            if self._num_saved >= _LEAST_SAVED:
                self._pay()
            return
        if was_trying and self._num_saved < _LEAST_SAVED:
            self._fail()
        self._num_saved = 0.0
        self._num_rounds += 1
        self._is_due = self._num_rounds % (_PAUSE if self.may_begin else _PAUSE_AFTER_FAILURE) == 0
        self._num_probes += self._is_due
        if num_tried and not num_right:
            self._num_of_all_left = _ROUNDS_OF_ALL
        elif self.may_begin and 0 < num_tried <= 2 * num_right:
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

        A few requests are probed now and then, and all of them for some rounds after a probe was right.

        Args:
            number: How many requests began before this one and have not ended.
            num_requests: Number of requests.
        """
        if self._probes_all:
            return True
        num_turns = min(num_requests, _TURNS)
        turn = (self._num_probes - 1) // _PROBES_IN_TURN
        return self._is_due and number % num_turns == turn % num_turns
