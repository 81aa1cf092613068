"""Gives requests slots for recurrent states, and lets later requests continue them.

Some networks (Qwen3.5) have layers that keep a state of fixed size instead of keys and values. It cannot be
cut back to fewer positions, so it belongs to a text as far as that was computed. Drafted tokens are not
applied to it at once: the engine logs them, and the next step of the text adds those that were accepted
(docs/decisions/operators.md).

When a request ends, its slot is kept until another request needs it: the next round of the same answer, or
the next turn of a conversation, continues there. A copy is kept of a prompt alone, because many templates
leave parts of the answer out of the next turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from pipelines.speculation.token_ids import NO_TOKENS, TokenIds


@dataclass(eq=False)
class State:
    """The recurrent states of a text.

    Attributes:
        slot: Where the engine has them.
        token_ids: int32, the tokens that were computed, while no request has the slot.
        salt: Only requests with the same salt may continue it.
    """

    slot: int
    token_ids: TokenIds = field(default_factory=NO_TOKENS.copy)
    salt: str = ""

    def begins(self, token_ids: TokenIds, salt: str) -> bool:
        """Return whether this is the state of a beginning of a text."""
        return self.salt == salt and np.array_equal(self.token_ids, token_ids[: len(self.token_ids)])


class StateSlots:
    """Gives slots to requests, and keeps those of ended ones.

    Args:
        num_slots: More than requests can run.
        copy_slot: Copies the states of one slot (first argument) to another (second), without their logs.
    """

    def __init__(self, num_slots: int, copy_slot: Callable[[int, int], None]) -> None:
        self._copy_slot = copy_slot
        self._free = deque(range(num_slots))
        self._kept: list[State] = []  # the latest last

    def continued(self, token_ids: TokenIds, salt: str) -> Iterator[State]:
        """Yield the kept states of a text's beginnings, the longest first.

        Args:
            token_ids: int32 [n], the text but for the tokens that must be computed.
            salt: Salt of the request.
        """
        fitting = [each for each in self._kept if each.begins(token_ids, salt)]
        yield from sorted(fitting, key=lambda state: -len(state.token_ids))

    def take(self, state: State | None = None) -> State:
        """Give a request a kept state, or another slot: a free one, or that which was kept for longest."""
        if state is not None:
            self._kept.remove(state)
            return state
        return State(self._free.popleft() if self._free else self._kept.pop(0).slot)

    def keep(self, state: State, token_ids: TokenIds, salt: str) -> None:
        """Keep the state of a request that has ended, and no other of the same text.

        Args:
            state: The state.
            token_ids: int32 [n], the tokens that were computed.
            salt: Salt of the request.
        """
        same = (each for each in self._kept if len(each.token_ids) == len(token_ids))
        for twin in [each for each in same if each.begins(token_ids, salt)]:
            self._kept.remove(twin)
            self.drop(twin)
        state.token_ids, state.salt = token_ids.copy(), salt
        self._kept.append(state)

    def keep_copy(self, state: State, token_ids: TokenIds, salt: str) -> None:
        """Keep a copy of a state whose log is empty; arguments as for ``keep``."""
        copy = self.take()
        self._copy_slot(state.slot, copy.slot)
        self.keep(copy, token_ids, salt)

    def drop(self, state: State) -> None:
        """Take back a slot whose content nobody may use."""
        self._free.append(state.slot)
