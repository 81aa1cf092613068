"""Gives requests what the engine has kept of their texts, and keeps what they leave.

All networks keep keys and values. A trained head reads the target's hidden states beside the tokens, and some
networks keep recurrent states; each has a class here.
"""

from __future__ import annotations

import sys
from typing import Any

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.executor.kv_cache import KvCache
from pipelines.executor.recurrent_states import State, StateSlots
from pipelines.executor.request import Request
from pipelines.executor.states import HeadStates
from pipelines.executor.step import Chunk
from pipelines.speculation.token_ids import Logits, TokenIds


class Contexts:
    """The contexts of a network that keeps keys and values alone.

    Attributes:
        cache: Blocks of the requests.
        max_decode_tokens: Most decode tokens of a request in one step.

    Args:
        cache: See the attribute.
    """

    max_decode_tokens = sys.maxsize

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache

    def begin(self, request: Request) -> None:
        """Give a request blocks, with the longest beginning of its text that is cached."""
        request.table, request.num_computed = self.cache.start(
            request.begin_prompt(), request.num_prompt, salt=request.asked.cache_salt
        )

    def chunk(self, request: Request, num_tokens: int, num_logits: int) -> Chunk:
        """Return the next tokens of a request that has blocks for them, with all that the network reads."""
        assert request.table is not None
        return Chunk(
            request.next_tokens[:num_tokens],
            request.num_computed,
            tuple(request.table.blocks),
            is_decode=not request.num_unread,
            num_logits=num_logits,
            **self._read_beside(request, num_tokens),
        )

    def _read_beside(self, request: Request, num_tokens: int) -> dict[str, Any]:
        return {}

    def take_states(self, request: Request, chunk: Chunk, states: Logits) -> None:
        """Keep the hidden states of a computed chunk, float32 [n, size], if the request returns them."""
        if request.asked.return_states:
            request.returned_states.add(chunk.start, states)

    def keep_prompt(self, request: Request) -> None:
        """Keep what only the end of a prompt has; its last token was just computed."""

    def commit(self, request: Request) -> None:
        """Let other requests share what this one has computed."""
        assert request.table is not None
        self.cache.commit(request.table, *self._computed(request))

    def _computed(self, request: Request) -> tuple[TokenIds, int, int]:
        """Return the known tokens, and how many of their positions are final, and how many prompt."""
        return request.known_tokens, request.num_computed, request.num_prompt

    def can_begin_again(self, request: Request) -> bool:
        """Return whether a request can be preempted, and compute its tokens again."""
        return True

    def keep(self, request: Request) -> None:
        """Take the blocks of a request, and keep their contents for later requests."""
        assert request.table is not None
        self.cache.release(request.table, *self._computed(request))
        request.table = None

    def discard(self, request: Request) -> None:
        """Take the blocks of a request, without their contents."""
        assert request.table is not None
        self.cache.discard(request.table)
        request.table = None


class HeadContexts(Contexts):
    """The contexts of a trained head, whose first positions are cached or have states of the target."""

    def begin(self, request: Request) -> None:
        """Give a request blocks; leave out leading tokens whose states are neither known nor cached."""
        super().begin(request)
        head = _head_of(request)
        while request.num_computed < head.num_unknown:
            self.discard(request)
            request.leave_out_first(head.shorten())
            super().begin(request)

    def _read_beside(self, request: Request, num_tokens: int) -> dict[str, Any]:
        head, start = _head_of(request), request.num_computed
        if start >= head.num_known:
            return {"hidden": head.hidden}
        return {"features": head.of(start, num_tokens)}

    def take_states(self, request: Request, chunk: Chunk, states: Logits) -> None:
        """Keep the head's own output, float32 [num_logits, hidden], for the token after the chunk."""
        _head_of(request).hidden = states[-1:].copy()

    def _computed(self, request: Request) -> tuple[TokenIds, int, int]:
        num_final = min(request.num_computed, _head_of(request).num_known)  # it computes drafted ones again
        return request.known_tokens, num_final, request.num_prompt

    def can_begin_again(self, request: Request) -> bool:
        """Return whether nothing is drafted yet: the head's own output is lost with its blocks."""
        return not request.num_output


class RecurrentContexts(Contexts):
    """The contexts of a network with recurrent states: a request continues where one of them is kept.

    Args:
        cache: See ``Contexts``.
        slots: Slots of the states.
    """

    max_decode_tokens = MAX_LOGGED_ROWS

    def __init__(self, cache: KvCache, slots: StateSlots) -> None:
        super().__init__(cache)
        self._slots = slots

    def begin(self, request: Request) -> None:
        """Give a request the longest kept state whose keys and values are cached too, or a new one."""
        known, salt = request.begin_prompt(), request.asked.cache_salt
        for state in self._slots.continued(known[:-1], salt):
            num_computed = len(state.token_ids)
            table, num_cached = self.cache.start(known, request.num_prompt, num_computed, salt)
            if num_cached == num_computed:
                request.state = self._slots.take(state)
                break
            # Not discarded: the table may have taken a block that only part of a text fills.
            self.cache.release(table, known, num_cached, request.num_prompt)
        else:
            table, num_cached = self.cache.start(known, request.num_prompt, 0, salt)
            request.state = self._slots.take()
        request.table, request.num_computed = table, num_cached

    def _read_beside(self, request: Request, num_tokens: int) -> dict[str, Any]:
        return {"slot": _state_of(request).slot}

    def keep_prompt(self, request: Request) -> None:
        """Keep a copy of the state behind a prompt."""
        prompt = request.tokens[: request.num_prompt]
        self._slots.keep_copy(_state_of(request), prompt, request.asked.cache_salt)

    def keep(self, request: Request) -> None:
        """Take the blocks and the state of a request, and keep their contents for later requests."""
        super().keep(request)
        computed = request.known_tokens[: request.num_computed]
        self._slots.keep(_state_of(request), computed, request.asked.cache_salt)
        request.state = None

    def discard(self, request: Request) -> None:
        """Take the blocks and the state of a request, without their contents."""
        super().discard(request)
        self._slots.drop(_state_of(request))
        request.state = None


def _head_of(request: Request) -> HeadStates:
    assert request.head is not None
    return request.head


def _state_of(request: Request) -> State:
    assert request.state is not None
    return request.state
