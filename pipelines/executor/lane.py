"""Decides what the next step computes.

Requests run in order of arrival. Rows of running requests have priority, so that no token waits for the long
prompt of another request; prompts fill the rest of the step's token budget in chunks: half of it belongs to
the oldest prompt, and the other half to those that are read soonest. When blocks run out,
the youngest running request is preempted: its blocks are freed and it waits. Its tokens are computed again
later, prompt as chunks and output as rows, with the same bits.

An executor can have two lanes, which share its steps and blocks. Neither can starve the other: each has a
queue and places of its own, comes first with its rows in every second step and with its prompts when it has
read less than the other, and gets blocks when it needs them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from pipelines.engine_memory import MAX_LOGGED_ROWS
from pipelines.errors import DraftproofError
from pipelines.executor.kv_cache import KvCache
from pipelines.executor.limits import deadline_passed
from pipelines.executor.recurrent_states import StateSlots
from pipelines.executor.sequence import MIN_CHUNK_TOKENS, Sequence
from pipelines.executor.step import Chunk


@dataclass(frozen=True)
class Work:
    """One request's share of a step."""

    lane: Lane
    sequence: Sequence
    chunk: Chunk


class Lane:
    """Requests that share a queue, places and cached blocks; lanes share the steps of an executor.

    Attributes:
        waiting: Requests in the queue.
        running: Requests that hold blocks, oldest first.
        cache: Blocks of the requests.
        num_read: Tokens of prompts that were read since both lanes have prompts.
        num_looked_up: Tokens of prompts that were looked up in the cache, once for each request.
        num_found: Those of them that were in it.
        cpu_s: CPU time of the process in steps, by the lane's share of their tokens.

    Args:
        cache: See the attribute.
        max_batch_size: Maximum of concurrent requests.
        states: Slots of a network with recurrent layers; None for others.
    """

    def __init__(self, cache: KvCache, max_batch_size: int, states: StateSlots | None = None) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.cache = cache
        self.num_read = 0
        self.num_looked_up = 0
        self.num_found = 0
        self.cpu_s = 0.0
        self._max_batch_size = max_batch_size
        self._states = states

    @property
    def has_work(self) -> bool:
        """Whether there are requests."""
        return bool(self.running or self.waiting)

    @property
    def reads_prompt(self) -> bool:
        """Whether part of a running request's prompt is still to be computed."""
        return any(sequence.reads_prompt for sequence in self.running)

    @property
    def num_answering(self) -> int:
        """Number of requests whose answer is being written, with those that the next step continues."""
        num_places = self._max_batch_size - len(self.running)
        return sum(not each.reads_prompt for each in self.running) + sum(
            each.num_tokens > each.num_prompt for each in islice(self.waiting, num_places)
        )

    @property
    def num_blocks_wanted(self) -> int:
        """Number of blocks that the requests need for the next step, except for those without a place.

        A request that begins may also hold the cached block that it copies.
        """
        requests = list(islice(chain(self.running, self.waiting), self._max_batch_size))
        size = self.cache.block_size
        num_beginning = len(requests) - len(self.running)
        return num_beginning + sum(-(-(each.num_tokens + len(each.draft_ids)) // size) for each in requests)

    def admit(self) -> None:
        """Let waiting requests run, as far as there are places and blocks."""
        while self.waiting and len(self.running) < self._max_batch_size:
            sequence = self.waiting[0]
            # Enough blocks for all known tokens: with fewer, the request would soon be preempted.
            num_blocks = -(-(sequence.num_tokens + len(sequence.draft_ids)) // self.cache.block_size)
            if self.running and num_blocks > self.cache.num_free_blocks:
                return
            self.waiting.popleft()
            self._start(sequence)
            if sequence.num_cached is None:
                sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
            if sequence.num_tokens == sequence.num_prompt:  # the loop comes again with each round
                self.num_looked_up += sequence.num_prompt
                self.num_found += sequence.num_computed
            self.running.append(sequence)

    def _start(self, sequence: Sequence) -> None:
        if self._states is not None:
            self._start_with_state(sequence, self._states)
            return
        table, num_cached = self.cache.start(sequence.begin_prompt(), sequence.num_prompt)
        while sequence.head is not None and num_cached < sequence.head.num_unknown:
            self.cache.discard(table)
            sequence.shorten()
            table, num_cached = self.cache.start(sequence.known_tokens, sequence.num_prompt)
        sequence.table, sequence.num_computed = table, num_cached

    def _start_with_state(self, sequence: Sequence, states: StateSlots) -> None:
        """Continue the longest kept state whose keys and values are cached too."""
        known = sequence.begin_prompt()
        for state in states.continued(known[:-1]):
            num_computed = len(state.token_ids)
            table, num_cached = self.cache.start(known, sequence.num_prompt, num_computed)
            if num_cached == num_computed:
                sequence.state = states.take(state)
                break
            # Not discarded: the table may have taken a block that only part of a text fills.
            self.cache.release(table, known, num_cached, sequence.num_prompt)
        else:
            table, num_cached = self.cache.start(known, sequence.num_prompt, 0)
            sequence.state = states.take()
        sequence.table, sequence.num_computed = table, num_cached

    def plan(self, work: list[Work], budget: int, *, prompts: bool) -> int:
        """Add the rows or the prompts of the lane to a step and allocate their blocks.

        Args:
            work: The step so far.
            budget: Maximum of tokens to add.
            prompts: Whether to add prompts; otherwise rows.

        Returns:
            Number of tokens added.
        """
        left = budget
        if prompts:
            for sequence, share in in_turn([each for each in self.running if each.reads_prompt]):
                left -= self._add(sequence, int(share * left), work)
        else:
            for sequence in [each for each in self.running if not each.reads_prompt]:
                left -= self._add(sequence, left, work)
        return budget - left

    def _add(self, sequence: Sequence, budget: int, work: list[Work]) -> int:
        """Add at most ``budget`` tokens of a request to the step; return their number."""
        if sequence.table is None:  # preempted for a request before it
            return 0
        chunk = (self._prompt_chunk if sequence.reads_prompt else self._rows)(sequence, budget)
        if chunk is None or not self._make_room(sequence, chunk.start + len(chunk.token_ids), work):
            return 0
        chunk = replace(chunk, blocks=tuple(sequence.table.blocks))
        work.append(Work(self, sequence, sequence.with_states(chunk)))
        return len(chunk.token_ids)

    def take(self, item: Work, logits: npt.NDArray[np.float32]) -> None:
        """Give a request the logits that a step computed for it."""
        sequence, chunk = item.sequence, item.chunk
        if not chunk.as_rows:
            self.num_read += len(chunk.token_ids)
        num_fed = chunk.start + len(chunk.token_ids)
        if not chunk.as_rows and chunk.num_logits:
            sequence.take_prompt_logits(logits)
        if sequence.state is not None and self._states is not None and num_fed == sequence.num_prompt:
            self._states.keep_copy(sequence.state, sequence.tokens[:num_fed])
        if not chunk.num_logits or (sequence.reads_prompt and num_fed < sequence.num_tokens):
            sequence.num_computed = num_fed
            return
        try:
            output = sequence.take_logits(logits if chunk.as_rows else logits[-1:], num_fed)
        except DraftproofError as error:  # invalid logits or parameters: the other requests continue
            self.fail(sequence, error)
            return
        if output is not None and output.is_final:
            self.end(sequence)
        else:
            assert sequence.table is not None
            self.cache.commit(sequence.table, sequence.known_tokens, sequence.num_final, sequence.num_prompt)
        if output is not None:
            sequence.outputs.put_nowait(output)

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        now = time.monotonic()
        for sequence in (*self.running, *self.waiting):
            deadline_s = sequence.request.deadline_s
            if deadline_s is not None and deadline_s < now:
                self.end(sequence)
                sequence.outputs.put_nowait(deadline_passed(sequence, now - deadline_s))

    def fail(self, sequence: Sequence, error: DraftproofError) -> None:
        """End a request with an error and discard what it computed."""
        if sequence.table is not None:
            self.cache.discard(sequence.table)
            sequence.table = None
        if sequence.state is not None and self._states is not None:
            self._states.drop(sequence.state)
            sequence.state = None
        self._remove(sequence)
        sequence.outputs.put_nowait(error)

    def end(self, sequence: Sequence) -> None:
        """Free the blocks of a request and remove it; does nothing the second time."""
        if sequence.table is not None:
            self._release(sequence)
        self._remove(sequence)

    def keep_to(self, quota: int) -> None:
        """Let the requests use at most ``quota`` blocks from now on, preempting the youngest if needed."""
        self.cache.quota = quota
        while self.cache.num_used > quota:
            self._preempt(self.running[-1])

    def _remove(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    @staticmethod
    def _rows(sequence: Sequence, budget: int) -> Chunk | None:
        token_ids = sequence.next_rows()
        num_logits = 1 + len(sequence.draft_ids)
        if sequence.state is not None:
            budget = min(budget, MAX_LOGGED_ROWS)
        if len(token_ids) > budget:  # recomputed output; a later step returns the logits
            token_ids = token_ids[: min(budget, len(token_ids) - num_logits)]
            num_logits = 0
        if not len(token_ids):
            return None
        return Chunk(token_ids, sequence.num_computed, (), as_rows=True, num_logits=num_logits)

    @staticmethod
    def _prompt_chunk(sequence: Sequence, budget: int) -> Chunk | None:
        num_left = sequence.num_prompt - sequence.num_computed
        needs_all = sequence.needs_prompt_logits
        count = min(num_left, budget, sequence.most_chunk_tokens if needs_all else budget)
        if num_left - count == 1:
            count -= 1
        if count < MIN_CHUNK_TOKENS:
            return None
        is_last = count == num_left and sequence.num_prompt == sequence.num_tokens
        token_ids = sequence.tokens[sequence.num_computed : sequence.num_computed + count]
        num_logits = count if needs_all else int(is_last)
        return Chunk(token_ids, sequence.num_computed, (), as_rows=False, num_logits=num_logits)

    def _make_room(self, sequence: Sequence, num_positions: int, work: list[Work]) -> bool:
        """Allocate blocks, preempting younger requests if needed; False if this request was preempted."""
        assert sequence.table is not None
        while not self.cache.grow(sequence.table, num_positions):
            planned = {id(item.sequence) for item in work}
            victim = next(other for other in reversed(self.running) if id(other) not in planned)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.head is not None and sequence.num_output:  # its own states are lost with its blocks
            self.end(sequence)
            sequence.outputs.put_nowait(sequence.proposal("length"))
            return
        self._release(sequence)
        sequence.num_computed = 0
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.table is not None
        self.cache.release(sequence.table, sequence.known_tokens, sequence.num_final, sequence.num_prompt)
        sequence.table = None
        if sequence.state is not None and self._states is not None:
            self._states.keep(sequence.state, sequence.known_tokens[: sequence.num_computed])
            sequence.state = None


def in_turn(reading: list[Sequence]) -> Iterator[tuple[Sequence, float]]:
    """Return prompts in the order in which they are read, each with its share of what is left for prompts.

    Args:
        reading: Requests whose prompts are being read, oldest first.
    """
    by_length = sorted(reading, key=lambda sequence: sequence.num_prompt - sequence.num_computed)
    if reading and by_length[0] is not reading[0]:
        by_length.remove(reading[0])
        yield reading[0], 0.5
    yield from ((sequence, 1.0) for sequence in by_length)


def plan_step(lanes: SequenceOf[Lane], max_num_tokens: int) -> list[Work]:
    """Plan the next step; empty only if there is no request.

    Args:
        lanes: The lanes in the order in which they get their rows. Half of what is left after the rows of the
            first lane is for prompts, if it has any.
        max_num_tokens: Maximum of tokens.
    """
    work: list[Work] = []
    left = max_num_tokens
    for lane in lanes:
        lane.expire()
        lane.admit()
    for lane in lanes:
        reserved = left // 2 if lane is not lanes[0] and lanes[0].reads_prompt else 0
        left -= lane.plan(work, left - reserved, prompts=False)
    readers = sorted((lane for lane in lanes if lane.reads_prompt), key=lambda lane: lane.num_read)
    if len(readers) < 2:
        for lane in lanes:
            lane.num_read = 0
    for lane in readers:
        reserved = left // 2 if lane is not readers[-1] and left >= 2 * MIN_CHUNK_TOKENS else 0
        left -= lane.plan(work, left - reserved, prompts=True)
    return work


def divide_blocks(first: Lane, second: Lane, *, is_first_open: bool) -> None:
    """Give the second lane the blocks that its requests need now, and the first lane all others.

    Args:
        first: While it is open, it gets at least half of the blocks.
        second: The other lane of the same executor.
        is_first_open: Whether requests of the first lane continue, although none of them may be here now.
    """
    if not (second.has_work or second.cache.quota):
        return
    num_blocks = first.cache.quota + second.cache.quota
    most = num_blocks // 2 if is_first_open or first.has_work else num_blocks
    quota = min(second.num_blocks_wanted, most)
    first.keep_to(num_blocks - quota)
    second.keep_to(quota)
