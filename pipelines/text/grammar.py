"""Limits the tokens of one request by a grammar of llguidance.

A mask depends on nothing but the output so far: matchers that go back, as they do after a rejected draft,
give the same masks as new ones (``tests/unit/text/test_grammar.py``).

Source: llguidance 1.9, https://github.com/guidance-ai/llguidance.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.errors import InvalidRequestError

TokenIds = npt.NDArray[np.int32]

_Found = TypeVar("_Found")


_USUAL_MASK_S = 0.002  # most take less than a tenth of it
_MOST_MASK_S = 0.03
"""Time of a mask on the processor; a step waits for it. Trials refuse guides that begin so slowly."""

_MOST_RENEWING_S = 10.0


class RequestGrammar:
    """The grammar of one request, whose states share one matcher.

    Outputs of a guide share the states of its lexer, whose number is limited. When these are used up, the
    request goes on with a lexer of its own, and with another when that one is used up: so others with the
    guide, or rejected drafts, do not decide whether an answer goes on.

    Args:
        origin: A matcher of llguidance at the beginning.
        new_origin: Returns another, with a lexer of its own; may take seconds.
        vocab_size: Logits per position.
        num_tokens: Tokens of the vocabulary, at most ``vocab_size``.

    Attributes:
        slow_s: See ``Grammar``.
    """

    def __init__(self, origin: Any, new_origin: Callable[[], Any], vocab_size: int, num_tokens: int) -> None:
        self.vocab_size = vocab_size
        self.num_tokens = num_tokens
        self._new_origin = new_origin
        self._renewing_s = 0.0
        self._spent_s = 0.0  # since the latest mask
        self.slow_s = 0.0
        self._begin(origin)

    def _begin(self, origin: Any) -> None:
        self._origin = origin
        self._masks = _Place(origin)
        self._forced = _Place(origin)  # never goes back, unlike the other

    @property
    def is_used_up(self) -> bool:
        """Whether the lexer has no more room, so that ``renew`` helps."""
        return is_used_up(self._origin)

    def renew(self) -> None:
        """Go on with a lexer of its own; takes as long as compiling the guide, so not while a step waits.

        Raises:
            InvalidRequestError: That has taken too long already.
        """
        if self._renewing_s > _MOST_RENEWING_S:
            raise InvalidRequestError(
                "the answer uses up the lexer of its guide again and again: compiling the guide anew took "
                f"{self._renewing_s:.1f} s, and one answer has {_MOST_RENEWING_S:g} s",
                "send a simpler schema or grammar",
            )
        began_s = time.perf_counter()
        self._begin(self._new_origin())
        self._renewing_s += time.perf_counter() - began_s

    def another(self) -> RequestGrammar:
        """Return the grammar of another request with the same guide."""
        return RequestGrammar(self._origin, self._new_origin, self.vocab_size, self.num_tokens)

    def after(self, output_ids: TokenIds) -> RequestGrammarState:
        """Return the state after an output, int32 [n].

        Raises:
            InvalidRequestError: The output does not follow the grammar.
        """
        self.is_complete_after(output_ids)
        self._spent_s = 0.0  # an output that is read anew is no slow mask
        return RequestGrammarState(self, output_ids)

    def is_complete_after(self, output_ids: TokenIds) -> bool:
        """Return whether nothing but the end may follow an output, int32 [n]; errors as ``after``."""
        return self._ask(self._masks, output_ids, lambda matcher: bool(matcher.is_stopped()))

    def mask_after(self, output_ids: TokenIds) -> npt.NDArray[np.bool_]:
        """Return ``mask_of`` after an output, int32 [n]; errors as ``after``, also if it takes too long."""
        mask = self._ask(self._masks, output_ids, mask_of)
        spent_s, self._spent_s = self._spent_s, 0.0
        self.slow_s = spent_s if spent_s > _USUAL_MASK_S else 0.0
        if spent_s > _MOST_MASK_S:
            raise _failed(f"what may follow here takes {spent_s:.2f} s to compute, at most {_MOST_MASK_S} s")
        return mask

    def forced_after(self, output_ids: TokenIds) -> TokenIds:
        """Return the tokens that must follow an output, int32 [n]; empty if there is a choice."""
        return self._ask(
            self._forced, output_ids, lambda matcher: np.array(matcher.compute_ff_tokens(), np.int32)
        )

    def _ask(self, place: _Place, output_ids: TokenIds, ask: Callable[[Any], _Found]) -> _Found:
        began_s = time.thread_time()
        try:
            return ask(place.matcher_after(output_ids))
        except BaseException:  # also a panic of llguidance: an error is for good, and may be half of the way
            place.begin(self._origin)
            raise
        finally:
            if place is self._masks:
                self._spent_s += time.thread_time() - began_s


class RequestGrammarState:
    """The place in a grammar after some output.

    Args:
        grammar: The grammar.
        output_ids: int32 [n], the output so far.
    """

    def __init__(self, grammar: RequestGrammar, output_ids: TokenIds) -> None:
        self._grammar = grammar
        self._output_ids = output_ids
        self._expected: list[int] = []
        self._masks: list[npt.NDArray[np.bool_]] = []  # here and after each of ``_expected``

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end of the output may follow."""
        return self._grammar.is_complete_after(self._output_ids)

    @property
    def may_end(self) -> bool:
        """Whether the output may end here."""
        return bool(self._mask()[self._grammar.num_tokens])

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocab_size]."""
        mask = np.zeros(self._grammar.vocab_size, np.bool_)
        mask[: self._grammar.num_tokens] = self._mask()[: self._grammar.num_tokens]
        return mask

    def look_ahead(self, draft_ids: TokenIds, limit_s: float) -> int:
        """Compute the masks here and after each of these tokens, int32 [k], until the time is over.

        Returns:
            The number of leading tokens after which a mask is known or not needed.
        """
        started_s = time.perf_counter()
        self._expected, self._masks = [], [self._grammar.mask_after(self._output_ids)]
        for token_id in draft_ids.tolist():
            if token_id >= self._grammar.num_tokens or not self._masks[-1][token_id]:
                break  # it will be rejected
            if time.perf_counter() - started_s > limit_s:
                return len(self._expected)
            self._expected.append(token_id)
            known = np.append(self._output_ids, np.array(self._expected, np.int32))
            self._masks.append(self._grammar.mask_after(known))
        return len(draft_ids)

    def push(self, token_id: int) -> None:
        """Add one output token."""
        self._output_ids = np.append(self._output_ids, np.int32(token_id))
        if self._expected and self._expected[0] == token_id:
            del self._expected[0], self._masks[0]
        else:
            self._expected, self._masks = [], []

    def _mask(self) -> npt.NDArray[np.bool_]:
        if not self._masks:
            self._masks = [self._grammar.mask_after(self._output_ids)]
        return self._masks[0]


class _Place:
    """A matcher that follows an output, forward and back.

    Args:
        origin: A matcher at the beginning, which is copied.
    """

    def __init__(self, origin: Any) -> None:
        self.begin(origin)

    def begin(self, origin: Any) -> None:
        """Go to the beginning with a copy of another matcher."""
        self._matcher = origin.deep_copy()
        self._consumed: TokenIds = np.empty(0, np.int32)

    def matcher_after(self, output_ids: TokenIds) -> Any:
        """Return the matcher after an output, int32 [n]; it moves with the next call.

        Raises:
            InvalidRequestError: The output does not follow the grammar, or takes too long.
        """
        consumed = self._consumed
        num_both = min(len(consumed), len(output_ids))
        differing = np.flatnonzero(consumed[:num_both] != output_ids[:num_both])
        num_kept = int(differing[0]) if len(differing) else num_both
        num_back = len(consumed) - num_kept
        if num_back and not self._matcher.rollback(num_back):
            raise _failed(self._matcher.get_error())
        for position, token_id in enumerate(output_ids[num_kept:].tolist(), start=num_kept):
            if not self._matcher.consume_token(token_id):
                raise InvalidRequestError(
                    f"earlier output does not follow the grammar: token {token_id} at position {position} of "
                    "the output",
                    "continue an answer with the guide with which it began",
                )
        self._consumed = output_ids
        return self._matcher


def mask_of(matcher: Any) -> npt.NDArray[np.bool_]:
    """Return the tokens that may come next and, behind them, whether the output may end."""
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if matcher.is_error():
        raise _failed(matcher.get_error())
    return mask.view(np.bool_)


def is_used_up(origin: Any) -> bool:
    """Whether the lexer that the copies of a matcher share has no more room for states."""
    trial = origin.deep_copy()
    trial.compute_bitmask()
    return bool(trial.is_error())


def _failed(reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the grammar could not be followed: {' '.join(reason.split())[:500]}",
        "send a simpler schema or grammar",
    )
