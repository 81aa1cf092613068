"""Decides when to try speculation again while it does not pay, and with which requests.

A probe is one token of the draft that is not verified but compared with the target's own token, so it costs a
step of the draft and no row. A request without margins has no such comparison: its probe is verified.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass
class _Round:
    """One round: what is tried in it, and what was found.

    Attributes:
        is_trying: Whether speculation is on, or interrupted to measure the target alone.
        probes_some: Whether a few requests are probed.
        probes_all: Whether all requests are probed.
        num_probed: Probes whose result is known.
        num_right: Those that were right.
        has_found: Whether a looked-up token, which nobody verified, was right.
    """

    is_trying: bool = False
    probes_some: bool = False
    probes_all: bool = False
    num_probed: int = 0
    num_right: int = 0
    has_found: bool = False


@dataclass
class _Pause:
    """A pause in rounds, which doubles each time up to a limit."""

    next_length: int
    longest: int
    end: int = 0

    def begin(self, now: int) -> None:
        self.end = now + self.next_length
        self.next_length = min(2 * self.next_length, self.longest)


class Probing:
    """Schedules the trials of one pair at one load."""

    def __init__(self) -> None:
        self._round = _Round()
        self._num_rounds = 0
        self._num_saved = 0.0  # rounds, by the speculation that is on
        self._check = _Pause(_FIRST_CHECK, _LAST_CHECK)  # in rounds of all kinds
        self._note_gain()

    def _note_gain(self) -> None:
        """Begin anew: speculation has paid."""
        self._num_alone = self._num_probes = 0  # rounds without speculation, and those with probes
        self._num_of_all_left = _ROUNDS_OF_ALL
        self._rest = _Pause(_FIRST_REST, _LAST_REST)  # in rounds without speculation

    def _note_failure(self) -> None:
        self._num_of_all_left = _ROUNDS_OF_ALL
        self._rest.begin(self._num_alone)

    def forget_round(self) -> None:
        """Forget the last round, which was at another load."""
        self._round = _Round()

    def note_idle(self) -> None:
        """Record that no request is left. The next one may bring another text, which is tried at once."""
        self.forget_round()
        self._rest.end = 0

    def note_error(self) -> None:
        """Record that the gain was an error of the cost model, so that nothing was saved."""
        self._num_saved = 0.0

    @property
    def was_trying(self) -> bool:
        """Whether speculation was on in the last round, or interrupted to measure the target alone."""
        return self._round.is_trying

    @property
    def may_begin(self) -> bool:
        """Whether speculation may begin for a small gain; not soon after it was tried and did not pay."""
        return self._num_alone >= self._rest.end

    @property
    def may_check(self) -> bool:
        """Whether speculation may be interrupted to measure the target alone; less and less often."""
        return self._num_rounds >= self._check.end

    def note_check(self) -> None:
        """Record that the target alone is measured now."""
        self._check.begin(self._num_rounds)

    @property
    def has_news(self) -> bool:
        """Whether a probe or a lookup of the last round was right."""
        return self._round.num_right > 0 or self._round.has_found

    def begin_round(self, *, is_trying: bool, gain: float) -> None:
        """Begin a round.

        Args:
            is_trying: Whether speculation is on in this round, or interrupted to measure the target alone.
            gain: Expected gain of this round by speculation, as a share of a round.
        """
        last, self._round = self._round, _Round(is_trying)
        self._num_rounds += 1
        if is_trying:
            self._num_saved += gain
            if self._num_saved >= _LEAST_SAVED:
                self._note_gain()
            return
        if last.is_trying and self._num_saved < _LEAST_SAVED:
            self._note_failure()
        self._num_saved = 0.0
        self._num_alone += 1
        pause = _PAUSE if self.may_begin else _PAUSE_AFTER_FAILURE
        self._round.probes_some = self._num_alone % pause == 0
        self._num_probes += self._round.probes_some
        if last.num_probed and not last.num_right:
            self._num_of_all_left = _ROUNDS_OF_ALL
        elif self.may_begin and 0 < last.num_probed <= 2 * last.num_right:
            self._round.probes_all = True
            self._num_of_all_left -= 1
            if not self._num_of_all_left:
                self._note_failure()

    def note(self, *, was_right: bool) -> None:
        """Record the result of a probe."""
        self._round.num_probed += 1
        self._round.num_right += was_right

    def note_lookup(self) -> None:
        """Record that a looked-up token, which nobody verified, was right."""
        self._round.has_found = True

    def is_turn_of(self, number: int, num_requests: int) -> bool:
        """Whether a request is probed in this round.

        A few requests are probed now and then, and all of them for some rounds after a probe was right.

        Args:
            number: How many requests began before this one and have not ended.
            num_requests: Number of requests.
        """
        if self._round.probes_all:
            return True
        num_turns = min(num_requests, _TURNS)
        turn = (self._num_probes - 1) // _PROBES_IN_TURN
        return self._round.probes_some and number % num_turns == turn % num_turns
