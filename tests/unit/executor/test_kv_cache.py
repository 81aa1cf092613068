"""Tests of the block invariants under random operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipelines.executor.kv_cache import BlockPool, BlockTable, KvCache
from pipelines.speculation.token_ids import TokenIds, count_accepted
from tests.support.examples import examples
from tests.support.recording_engine import held_blocks

BLOCK_SIZE = 4
NUM_BLOCKS = 14


@dataclass(eq=False)  # two requests may be equal and still be two
class Holder:
    """A request that uses blocks, and what it would find in them."""

    tokens: list[int]
    num_prompt: int
    cache: KvCache
    table: BlockTable
    num_computed: int = 0
    finished: bool = field(default=False)


class KvCacheMachine(RuleBasedStateMachine):
    """Starts, grows, commits and releases requests of two caches that share a pool.

    A shadow of the memory checks every reuse, and that no cache takes a block that another one uses.
    """

    has_one_form = False

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
        self.pool = BlockPool(NUM_BLOCKS)
        self.caches = [
            KvCache(self.pool, BLOCK_SIZE, self.copy, has_one_form=self.has_one_form) for _ in range(2)
        ]
        self.holders: list[Holder] = []
        self.released: list[list[int]] = []

    def copy(self, source: int, destination: int) -> None:
        for slot in range(BLOCK_SIZE):
            if (source, slot) in self.memory:
                self.memory[destination, slot] = self.memory[source, slot]

    def content(self, holder: Holder, position: int) -> tuple[tuple[int, ...], int]:
        """Return what a position's keys stand for: all tokens up to it, and how many belong to the prompt."""
        num_prompt = 0 if self.has_one_form else min(holder.num_prompt, position + 1)
        return tuple(holder.tokens[: position + 1]), num_prompt

    @rule(
        prompt=st.lists(st.integers(1, 2), min_size=2, max_size=18),
        output=st.lists(st.integers(1, 2), max_size=6),
        number=st.integers(0, 1),
    )
    def start(self, prompt: list[int], output: list[int], number: int) -> None:
        self.begin(prompt + output, len(prompt), number)

    @precondition(lambda self: self.released)
    @rule(data=st.data(), number=st.integers(0, 1))
    def ask_on(self, data: st.DataObject, number: int) -> None:
        """Start a request on the tokens of an earlier one, of which more or less is prompt now."""
        tokens = data.draw(st.sampled_from(self.released))
        self.begin(tokens, data.draw(st.integers(2, len(tokens))), number)

    def begin(self, tokens: list[int], num_prompt: int, number: int) -> None:
        cache = self.caches[number]
        if -(-len(tokens) // BLOCK_SIZE) > cache.num_free_blocks:  # as ``BatchClass.admit``
            return
        table, num_cached = cache.start(np.array(tokens, np.int32), num_prompt)
        holder = Holder(tokens, num_prompt, cache, table, num_cached)
        assert num_cached < len(tokens) and num_prompt - num_cached != 1
        assert len(table.blocks) == -(-num_cached // BLOCK_SIZE)
        self.holders.append(holder)

    @rule(data=st.data())
    def divide(self, data: st.DataObject) -> None:
        first, second = self.caches
        first.quota = data.draw(st.integers(first.num_used, self.pool.num_blocks - second.num_used))
        second.quota = self.pool.num_blocks - first.quota

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        stop = data.draw(st.integers(holder.num_computed, len(holder.tokens)))
        cache, free_before = holder.cache, holder.cache.num_free_blocks
        num_missing = -(-stop // BLOCK_SIZE) - len(holder.table.blocks)
        if not cache.grow(holder.table, stop):
            assert cache.num_free_blocks == free_before < num_missing
            return
        for position in range(holder.num_computed, stop):
            block = holder.table.blocks[position // BLOCK_SIZE]
            shared = sum(block in other.table.blocks for other in self.holders)
            assert shared == 1, "a request writes to a block that another one reads"
            self.memory[block, position % BLOCK_SIZE] = self.content(holder, position)
        holder.num_computed = stop
        cache.commit(holder.table, np.array(holder.tokens, np.int32), stop, holder.num_prompt)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), trusted=st.booleans())
    def release(self, data: st.DataObject, trusted: bool) -> None:
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        self.released.append(holder.tokens)
        if trusted:
            tokens = np.array(holder.tokens, np.int32)
            holder.cache.release(holder.table, tokens, holder.num_computed, holder.num_prompt)
        else:
            holder.cache.discard(holder.table)

    @invariant()
    def every_block_is_in_one_state_and_holds_what_its_users_computed(self) -> None:
        held = [held_blocks(cache) for cache in self.caches]
        assert len(self.pool.free) + sum(map(len, held)) == self.pool.num_blocks
        assert len(set(self.pool.free).union(*held)) == self.pool.num_blocks
        for holder in self.holders:
            for position in range(holder.num_computed):
                place = holder.table.blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
                assert self.memory[place] == self.content(holder, position)
        for cache in self.caches:
            tables = (holder.table for holder in self.holders if holder.cache is cache)
            used = {block for table in tables for block in table.blocks}
            assert cache.num_used == len(used) <= cache.quota


class OneFormMachine(KvCacheMachine):
    """The same where a position has the same bits as prompt and as output."""

    has_one_form = True


@pytest.mark.parametrize("quotas", [(NUM_BLOCKS - 1, 0), (5, NUM_BLOCKS - 6)])
def test_of_both_caches_the_block_that_was_unused_for_longest_is_taken(quotas: tuple[int, int]) -> None:
    pool = BlockPool(NUM_BLOCKS)
    first, second = (KvCache(pool, BLOCK_SIZE, lambda *_: None, has_one_form=False) for _ in range(2))

    def ask(cache: KvCache, token: int) -> int:
        """Answer a prompt of four blocks; return how many of its positions were cached."""
        first.quota, second.quota = (NUM_BLOCKS - 1, 0) if cache is first else (5, NUM_BLOCKS - 6)
        tokens = np.full(4 * BLOCK_SIZE + 2, token, np.int32)
        table, num_cached = cache.start(tokens, len(tokens))
        assert cache.grow(table, len(tokens))
        cache.release(table, tokens, len(tokens), len(tokens))
        first.quota, second.quota = quotas
        return num_cached

    assert [ask(first, 1), ask(second, 1)] == [0, 0]
    assert ask(first, 2) == 0  # takes blocks that only the first cache used, before the second
    assert ask(second, 1) == 4 * BLOCK_SIZE
    assert ask(first, 1) < 4 * BLOCK_SIZE


def test_a_request_is_not_compared_with_every_text_that_begins_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KvCache(BlockPool(1100), BLOCK_SIZE, lambda *_: None, has_one_form=True)
    compared = []

    def count(*tokens: TokenIds) -> int:
        compared.append(tokens)
        return count_accepted(*tokens)

    monkeypatch.setattr("pipelines.executor.kv_cache.count_accepted", count)
    for number in range(1000):
        text = np.array([1, number // 100, number % 100, number, 5], np.int32)
        table, _ = cache.start(text, len(text))
        assert cache.grow(table, len(text))
        cache.release(table, text, len(text), len(text))
    compared.clear()
    _, num_cached = cache.start(np.array([1, 7, 30, 5, 5, 5], np.int32), 6)
    assert num_cached == 3
    assert len(compared) <= 2


KvCacheMachine.TestCase.settings = examples(60, stateful_step_count=60)
OneFormMachine.TestCase.settings = examples(40, stateful_step_count=60)
TestKvCache = KvCacheMachine.TestCase
TestKvCacheOfOneForm = OneFormMachine.TestCase
