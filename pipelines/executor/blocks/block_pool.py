"""Divides the blocks of an engine between the caches of its lanes."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Protocol

SCRATCH_BLOCK = 0
"""Used by dummy rows; never allocated to a request."""


class Borrower(Protocol):
    """A cache that takes its blocks from a pool."""

    quota: int

    @property
    def unused_since(self) -> int | None:
        """Moment of the pool since which no request has used its oldest cached block; None without one."""

    def evict_oldest(self) -> int:
        """Forget the cached block that was unused for longest, and return it."""


class BlockPool:
    """The blocks of one engine.

    The requests of a cache may use as many blocks as its quota; the quotas add up to ``num_blocks``. So a
    cache whose requests are within its quota always gets a block. Cached blocks that no request uses count
    for no quota: when no block is free, the one that was unused for longest is taken, whichever cache has it.

    Attributes:
        num_blocks: Number of blocks for requests, without the scratch block.

    Args:
        num_blocks: Number of all blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks - 1
        self.free = deque(range(SCRATCH_BLOCK + 1, num_blocks))
        self._borrowers: list[Borrower] = []
        self._moments = itertools.count()

    def join(self, borrower: Borrower) -> int:
        """Add a cache and return its quota: all blocks for the first one, none for others."""
        self._borrowers.append(borrower)
        return self.num_blocks if len(self._borrowers) == 1 else 0

    def moment(self) -> int:
        """Return a number that is greater than all before it."""
        return next(self._moments)

    def take(self) -> int:
        """Return a block for a cache whose requests use fewer than its quota."""
        if self.free:
            return self.free.popleft()
        since = {borrower.unused_since: borrower for borrower in self._borrowers}
        return since[min(moment for moment in since if moment is not None)].evict_oldest()
