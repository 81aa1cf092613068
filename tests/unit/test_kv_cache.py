"""Block invariants under random operations; run: pytest tests/unit/test_kv_cache.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipelines.executor.kv_cache import BlockTable, KvCache

BLOCK_SIZE = 4
NUM_BLOCKS = 14


@dataclass(eq=False)  # two requests may be alike and still be two
class Holder:
    """A request that uses blocks, and what it would find in them."""

    tokens: list[int]
    num_prompt: int
    table: BlockTable
    num_computed: int = 0
    finished: bool = field(default=False)


class KvCacheMachine(RuleBasedStateMachine):
    """Starts, grows, commits and releases requests; a shadow of the memory checks every reuse."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
        self.cache = KvCache(NUM_BLOCKS, BLOCK_SIZE, self.copy)
        self.holders: list[Holder] = []

    def copy(self, source: int, destination: int) -> None:
        for slot in range(BLOCK_SIZE):
            if (source, slot) in self.memory:
                self.memory[destination, slot] = self.memory[source, slot]

    def content(self, holder: Holder, position: int) -> tuple[tuple[int, ...], int]:
        """What the keys of a position stand for: all tokens up to it, and the prompt's share of them."""
        return tuple(holder.tokens[: position + 1]), min(holder.num_prompt, position + 1)

    @rule(
        prompt=st.lists(st.integers(1, 2), min_size=2, max_size=18),
        output=st.lists(st.integers(1, 2), max_size=6),
    )
    def start(self, prompt: list[int], output: list[int]) -> None:
        tokens = prompt + output
        table, num_cached = self.cache.start(np.array(tokens, np.int32), len(prompt))
        holder = Holder(tokens, len(prompt), table, num_cached)
        assert num_cached < len(tokens) and len(prompt) - num_cached != 1
        assert len(table.blocks) == -(-num_cached // BLOCK_SIZE)
        self.holders.append(holder)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        stop = data.draw(st.integers(holder.num_computed, len(holder.tokens)))
        free_before = self.cache.num_free_blocks
        if not self.cache.grow(holder.table, stop):
            assert self.cache.num_free_blocks == free_before
            return
        for position in range(holder.num_computed, stop):
            block = holder.table.blocks[position // BLOCK_SIZE]
            shared = sum(block in other.table.blocks for other in self.holders)
            assert shared == 1, "a request writes to a block that another one reads"
            self.memory[block, position % BLOCK_SIZE] = self.content(holder, position)
        holder.num_computed = stop
        self.cache.commit(holder.table, np.array(holder.tokens, np.int32), stop, holder.num_prompt)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), trusted=st.booleans())
    def release(self, data: st.DataObject, trusted: bool) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        if trusted:
            tokens = np.array(holder.tokens, np.int32)
            self.cache.release(holder.table, tokens, holder.num_computed, holder.num_prompt)
        else:
            self.cache.discard(holder.table)

    @invariant()
    def every_block_is_in_one_state_and_holds_what_its_users_computed(self) -> None:
        self.cache.check()
        for holder in self.holders:
            for position in range(holder.num_computed):
                place = holder.table.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
                assert self.memory[place] == self.content(holder, position)
        used = {block for holder in self.holders for block in holder.table.blocks}
        assert self.cache.num_free_blocks == NUM_BLOCKS - 1 - len(used)


KvCacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestKvCache = KvCacheMachine.TestCase
