"""Divides the blocks of an engine between the caches of its lanes."""

from __future__ import annotations

from collections import deque
from typing import Protocol

SCRATCH_BLOCK = 0
"""Used by dummy rows; never allocated to a request."""


class Borrower(Protocol):
    """A cache that takes its blocks from a pool."""

    quota: int

    @property
    def num_held(self) -> int:
        """Number of blocks that it uses or has cached."""

    def evict_oldest(self) -> int:
        """Forget the cached block that was unused for longest, and return it."""


class BlockPool:
    """The blocks of one engine.

    A cache may use as many blocks as its quota; the quotas add up to ``num_blocks``. Cached blocks that no
    request uses stay in a cache beyond its quota until another one needs them. So a cache that is within its
    quota always gets a block, whatever the others hold.

    Attributes:
        num_blocks: Number of blocks for requests, without the scratch block.

    Args:
        num_blocks: Number of all blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks - 1
        self.free = deque(range(SCRATCH_BLOCK + 1, num_blocks))
        self._borrowers: list[Borrower] = []

    def join(self, borrower: Borrower) -> int:
        """Add a cache and return its quota: all blocks for the first one, none for others."""
        self._borrowers.append(borrower)
        return self.num_blocks if len(self._borrowers) == 1 else 0

    def take(self, borrower: Borrower) -> int:
        """Return a block for a cache that uses fewer than its quota."""
        if self.free:
            return self.free.popleft()
        over = (other for other in (borrower, *self._borrowers) if other.num_held > other.quota)
        return next(over, borrower).evict_oldest()
