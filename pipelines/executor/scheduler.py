"""Decides what each step computes; nothing else does.

Requests run in order of arrival. Decode tokens come first, so that no answer waits for the long prompt of
another request. Prompts fill the rest of the step's tokens in chunks, as far as ``chunk_budget`` gives them
time: half of the rest belongs to the oldest prompt, and the other half to those that are read soonest.

Of two batch classes neither starves the other. Each comes first with its decode tokens in every second step
and with its prompts when it has read less than the other, and gets blocks when it needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pipelines.executor.batch_class import BatchClass, ScheduledChunk
from pipelines.executor.chunk_budget import ChunkBudget, fitting_tokens, is_short, units_per_token
from pipelines.executor.grammars import GrammarTurns
from pipelines.executor.request import MIN_CHUNK_TOKENS, Request
from pipelines.executor.step import Chunk


class Scheduler:
    """Schedules the steps of one executor, and counts its requests and blocks.

    Attributes:
        classes: The batch classes.
        num_blocks: Number of blocks for requests.
        chunk_budget: Limits the prompts of a step.
        has_open_rounds: Returns whether requests of the first class continue, although none of them may be
            here now.

    Args:
        classes: See the attribute.
        max_num_tokens: Maximum of tokens per step.
    """

    def __init__(self, classes: tuple[BatchClass, ...], max_num_tokens: int) -> None:
        self.classes = classes
        self.num_blocks = sum(each.cache.quota for each in classes)
        self.chunk_budget = ChunkBudget()
        self.has_open_rounds: Callable[[], bool] = lambda: False
        self._max_num_tokens = max_num_tokens
        self._grammar_turns = GrammarTurns()
        self._num_steps = 0

    def schedule(self) -> list[ScheduledChunk]:
        """Return what the next step computes; empty only if there is no request."""
        self._num_steps += 1
        in_turn = self.classes[::-1] if self._num_steps % 2 else self.classes
        self._divide_blocks()
        for each in in_turn:
            each.expire()
            each.admit()
        resting = self._grammar_turns.resting([request for each in in_turn for request in each.running])
        step = _Step(self._max_num_tokens)

        for batch_class in in_turn:
            # Half of what the first class leaves is for its prompts.
            reserved = step.num_left // 2 if batch_class is not in_turn[0] and in_turn[0].reading else 0
            for request in batch_class.decoding:
                if request not in resting:
                    budget = min(step.num_left - reserved, batch_class.contexts.max_decode_tokens)
                    step.add(batch_class, request, *_decode_size(request, budget))

        units, num_decoding = self.chunk_budget.units, len(step.chunks)
        prompts = self._prompts(in_turn, resting, has_answers=num_decoding > 0)
        for batch_class, requests in prompts:
            is_shared = batch_class is not prompts[-1][0] and step.num_left >= 2 * MIN_CHUNK_TOKENS
            reserved, reserved_units = (step.num_left // 2, units / 2) if is_shared else (0, 0.0)
            for request, share in _shared(requests):
                is_first = len(step.chunks) == num_decoding
                if not is_first and units - reserved_units < MIN_CHUNK_TOKENS:
                    break
                most = fitting_tokens(request, share * (units - reserved_units), is_first=is_first)
                budget = min(int(share * (step.num_left - reserved)), most)
                num_added = step.add(batch_class, request, *_chunk_size(request, budget))
                units -= num_added * units_per_token(request.num_computed)
        return step.chunks

    def _prompts(
        self, classes: Sequence[BatchClass], resting: frozenset[Request], *, has_answers: bool
    ) -> list[tuple[BatchClass, list[Request]]]:
        """Return the prompts that the next step may read; those of the class that has read less come first.

        While it is the answers' turn, these are short ones, unless there is nothing else to compute.
        """
        reading = [each for each in classes if each.reading]
        if len(reading) < 2:
            for each in classes:
                each.num_read = 0
        reading.sort(key=lambda each: each.num_read)
        prompts = [(each, [found for found in each.reading if found not in resting]) for each in reading]
        if self.chunk_budget.shared.must_wait:
            short = [(each, list(filter(is_short, requests))) for each, requests in prompts]
            if has_answers or any(requests for _, requests in short):
                prompts = short
        return [(each, requests) for each, requests in prompts if requests]

    def _divide_blocks(self) -> None:
        """Give the second class the blocks that its requests need now, and the first class all others.

        The first class gets at least half of the blocks while requests of it are here or continue.
        """
        if len(self.classes) == 1:
            return
        first, second = self.classes
        if not (second.has_work or second.cache.quota):
            return
        most = self.num_blocks // 2 if self.has_open_rounds() or first.has_work else self.num_blocks
        quota = min(second.num_blocks_wanted, most)
        first.keep_to(self.num_blocks - quota)
        second.keep_to(quota)

    def continued(self, step: Sequence[ScheduledChunk]) -> list[ScheduledChunk] | None:
        """Return the step that computes the next position of each proposal of a step that has been computed.

        To schedule such a step, lay out its inputs and learn from it takes as long as a small draft computes.

        Returns:
            None if the next step has to be scheduled: there are other requests, one has ended, its deadline
            has passed, it has not exactly one token to compute now, or its next position begins a block.
        """
        now_s = time.monotonic()
        if len(step) != self.num_running or not all(_continues(each, now_s) for each in step):
            return None
        return [ScheduledChunk(each.batch_class, each.request, _next_chunk(each)) for each in step]

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request uses."""
        return self.num_blocks - sum(each.cache.num_used for each in self.classes)

    @property
    def num_running(self) -> int:
        """Number of requests that hold blocks."""
        return sum(len(each.running) for each in self.classes)

    @property
    def num_waiting(self) -> int:
        """Number of requests in the queues."""
        return sum(len(each.waiting) for each in self.classes)

    @property
    def num_looked_up(self) -> int:
        """Number of tokens of prompts that were looked up in the cache."""
        return sum(each.num_looked_up for each in self.classes)

    @property
    def num_found(self) -> int:
        """Number of those tokens that were in it."""
        return sum(each.num_found for each in self.classes)

    @property
    def num_reading(self) -> int:
        """Number of running requests that are far from the end of their prompts."""
        return sum(not is_short(request) for each in self.classes for request in each.reading)

    @property
    def num_answering(self) -> int:
        """Number of requests whose answer or proposal is being written."""
        return sum(each.num_answering for each in self.classes)


class _Step:
    """A step while it is scheduled.

    Attributes:
        chunks: What it computes so far.
        num_left: Number of tokens for which it has room.
    """

    def __init__(self, max_num_tokens: int) -> None:
        self.chunks: list[ScheduledChunk] = []
        self.num_left = max_num_tokens
        self._requests: set[Request] = set()

    def add(self, batch_class: BatchClass, request: Request, num_tokens: int, num_logits: int) -> int:
        """Add the next tokens of a request, if there are blocks for them; return their number."""
        num_positions = request.num_computed + num_tokens
        if not num_tokens or not batch_class.make_room(request, num_positions, self._requests):
            return 0
        chunk = batch_class.contexts.chunk(request, num_tokens, num_logits)
        self.chunks.append(ScheduledChunk(batch_class, request, chunk))
        self._requests.add(request)
        self.num_left -= num_tokens
        return num_tokens


def _decode_size(request: Request, budget: int) -> tuple[int, int]:
    """Return how many decode tokens of a request a step computes, and how many logits it returns."""
    num_logits = 1 + len(request.draft_ids)
    num_tokens = request.num_tokens - request.num_computed + len(request.draft_ids)
    if num_tokens <= budget:
        return num_tokens, num_logits
    return min(budget, num_tokens - num_logits), 0  # recomputed output; a later step returns the logits


def _chunk_size(request: Request, budget: int) -> tuple[int, int]:
    """Return how many tokens of a prompt a step computes, and how many logits it returns.

    A chunk has at least two tokens and never leaves a single one.
    """
    most = request.max_chunk_tokens
    count = min(request.num_unread, budget, budget if most is None else most)
    if request.num_unread - count == 1:
        count -= 1
    if count < MIN_CHUNK_TOKENS:
        return 0, 0
    if most is not None:
        return count, count
    return count, int(count == request.num_unread and request.num_prompt == request.num_tokens)


def _shared(requests: Sequence[Request]) -> Iterator[tuple[Request, float]]:
    """Return prompts in the order in which they are read, each with its share of what is left for prompts.

    Args:
        requests: Requests whose prompts are read, oldest first.
    """
    by_length = sorted(requests, key=lambda request: request.num_unread)
    if by_length[0] is not requests[0]:
        by_length.remove(requests[0])
        yield requests[0], 0.5
    yield from ((request, 1.0) for request in by_length)


def _continues(scheduled: ScheduledChunk, now_s: float) -> bool:
    request, chunk = scheduled.request, scheduled.chunk
    position = chunk.start + 1
    deadline_s = request.asked.deadline_s
    return (
        request.is_proposing
        and (chunk.is_decode, len(chunk.token_ids), chunk.num_logits) == (True, 1, 1)
        and (request.num_computed, request.num_tokens) == (position, position + 1)
        and position % scheduled.batch_class.cache.block_size != 0
        and (deadline_s is None or now_s <= deadline_s)
    )


def _next_chunk(scheduled: ScheduledChunk) -> Chunk:
    position = scheduled.chunk.start + 1
    token_ids = scheduled.request.tokens[position : position + 1]
    # Blocks that the cache has replaced by those of a twin keep their contents until a step is scheduled.
    return Chunk(token_ids, position, scheduled.chunk.blocks, is_decode=True, num_logits=1)
