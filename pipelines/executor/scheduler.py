"""Decides what the next step computes, and for whom.

Requests run in the order of their arrival. Rows of running requests go first, so that nobody's next
token waits for somebody's long prompt; prompts fill the rest of the step's token budget in chunks. When
the blocks run out, the youngest running request gives its own back and waits; what it had is computed
again later, prompt as chunks and output as rows, to the same bits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pipelines.executor.kv_cache import KvCache
from pipelines.executor.sequence import Sequence
from pipelines.executor.step import Chunk

MIN_CHUNK_TOKENS = 2
"""A chunk of one token would run in the attention kernel of rows, with other last bits."""


@dataclass(frozen=True)
class Work:
    """One request's share of a step."""

    sequence: Sequence
    chunk: Chunk


class Scheduler:
    """Holds the waiting and the running requests.

    Args:
        cache: Blocks of the requests.
        max_batch_size: Requests that run at once.
        max_num_tokens: Tokens computed in one step.
    """

    def __init__(self, cache: KvCache, max_batch_size: int, max_num_tokens: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._cache = cache
        self._max_batch_size = max_batch_size
        self._max_num_tokens = max_num_tokens

    def plan(self) -> list[Work]:
        """The next step; blocks for it are taken. Empty only if there is no request."""
        self._admit()
        budget = self._max_num_tokens
        work: list[Work] = []
        for reads_prompt in (False, True):
            for sequence in tuple(self.running):
                if sequence.table is None or sequence.reads_prompt != reads_prompt:
                    continue
                chunk = self._prompt_chunk(sequence, budget) if reads_prompt else self._rows(sequence, budget)
                if chunk is None or not self._make_room(sequence, chunk.start + len(chunk.token_ids), work):
                    continue
                assert sequence.table is not None
                work.append(Work(sequence, _with_blocks(chunk, sequence.table.blocks)))
                budget -= len(chunk.token_ids)
        return work

    def remove(self, sequence: Sequence) -> None:
        """Forget a request; its blocks are not touched."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_batch_size:
            sequence = self.waiting[0]
            # Blocks for everything known: a request that started with less would soon be preempted.
            num_blocks = -(-(sequence.num_tokens + len(sequence.draft_ids)) // self._cache.block_size)
            if self.running and num_blocks > self._cache.num_free_blocks:
                return
            self.waiting.popleft()
            sequence.table, sequence.num_computed = self._cache.start(
                sequence.known_tokens, sequence.num_prompt
            )
            self.running.append(sequence)

    @staticmethod
    def _rows(sequence: Sequence, budget: int) -> Chunk | None:
        token_ids = sequence.next_rows()
        num_logits = 1 + len(sequence.draft_ids)
        if len(token_ids) > budget:  # output that is computed again; the logits come with a later step
            token_ids = token_ids[: min(budget, len(token_ids) - num_logits)]
            num_logits = 0
        if not len(token_ids):
            return None
        return Chunk(token_ids, sequence.num_computed, (), as_rows=True, num_logits=num_logits)

    @staticmethod
    def _prompt_chunk(sequence: Sequence, budget: int) -> Chunk | None:
        num_left = sequence.num_prompt - sequence.num_computed
        count = min(num_left, budget)
        if num_left - count == 1:
            count -= 1
        if count < MIN_CHUNK_TOKENS:
            return None
        is_last = count == num_left and sequence.num_prompt == sequence.num_tokens
        token_ids = sequence.tokens[sequence.num_computed : sequence.num_computed + count]
        return Chunk(token_ids, sequence.num_computed, (), as_rows=False, num_logits=int(is_last))

    def _make_room(self, sequence: Sequence, num_positions: int, work: list[Work]) -> bool:
        """Blocks for a request, if need be from younger ones; False if it was the youngest itself."""
        assert sequence.table is not None
        while not self._cache.grow(sequence.table, num_positions):
            planned = {id(item.sequence) for item in work}
            victim = next(other for other in reversed(self.running) if id(other) not in planned)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self._cache.release(sequence.table, sequence.known_tokens, sequence.num_computed, sequence.num_prompt)
        sequence.table = None
        sequence.num_computed = 0
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)


def _with_blocks(chunk: Chunk, blocks: list[int]) -> Chunk:
    return Chunk(chunk.token_ids, chunk.start, tuple(blocks), chunk.as_rows, chunk.num_logits)
