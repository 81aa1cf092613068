"""Holds the requests of one class: its queue, its running requests and their blocks.

An executor can have two classes, which share its steps and blocks. Each has a queue and places of its own.
When blocks run out, the youngest running request of the class is preempted: its blocks are freed and it
waits. Its tokens are computed again later, prompt as chunks and output as decode tokens, with the same bits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain, islice

from pipelines.errors import DraftproofError, RequestTimeoutError
from pipelines.executor.contexts import Contexts
from pipelines.executor.request import Request
from pipelines.executor.step import Chunk
from pipelines.speculation.token_ids import Logits


class BatchClass:
    """Requests that share a queue, places and cached blocks; classes share the steps of an executor.

    Attributes:
        waiting: Requests in the queue.
        running: Requests that hold blocks, oldest first.
        contexts: What the engine keeps of their texts.
        cache: The blocks among that.
        num_read: Tokens of prompts that were read since both classes have prompts.
        num_looked_up: Tokens of prompts that were looked up in the cache, once for each request.
        num_found: Those of them that were in it.
        cpu_s: CPU time of the process in steps, by the class's share of their tokens.

    Args:
        contexts: See the attribute.
        max_batch_size: Maximum of concurrent requests.
    """

    def __init__(self, contexts: Contexts, max_batch_size: int) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.contexts = contexts
        self.cache = contexts.cache
        self.num_read = 0
        self.num_looked_up = 0
        self.num_found = 0
        self.cpu_s = 0.0
        self._max_batch_size = max_batch_size

    @property
    def has_work(self) -> bool:
        """Whether there are requests."""
        return bool(self.running or self.waiting)

    @property
    def decoding(self) -> list[Request]:
        """Running requests whose prompt is computed, oldest first."""
        return [each for each in self.running if not each.num_unread]

    @property
    def reading(self) -> list[Request]:
        """Running requests with part of their prompt still to be computed, oldest first."""
        return [each for each in self.running if each.num_unread]

    @property
    def num_answering(self) -> int:
        """Number of requests whose answer is being written, with those that the next step continues."""
        num_places = self._max_batch_size - len(self.running)
        return len(self.decoding) + sum(
            each.num_tokens > each.num_prompt for each in islice(self.waiting, num_places)
        )

    @property
    def num_blocks_wanted(self) -> int:
        """Number of blocks that the requests need for the next step, except for those without a place.

        A request that begins may also hold the cached block that it copies.
        """
        requests = list(islice(chain(self.running, self.waiting), self._max_batch_size))
        return len(requests) - len(self.running) + sum(map(self._num_blocks, requests))

    def _num_blocks(self, request: Request) -> int:
        return -(-(request.num_tokens + len(request.draft_ids)) // self.cache.block_size)

    def admit(self) -> None:
        """Let waiting requests run, as far as there are places and blocks."""
        while self.waiting and len(self.running) < self._max_batch_size:
            request = self.waiting[0]
            # Enough blocks for all known tokens: with fewer, the request would soon be preempted.
            if self.running and self._num_blocks(request) > self.cache.num_free_blocks:
                return
            self.waiting.popleft()
            self.contexts.begin(request)
            if request.num_cached is None:
                request.num_cached = min(request.num_computed, request.num_prompt)
            if request.num_tokens == request.num_prompt:  # the loop comes again with each round
                self.num_looked_up += request.num_prompt
                self.num_found += request.num_computed
            self.running.append(request)

    def make_room(self, request: Request, num_positions: int, scheduled: Collection[Request]) -> bool:
        """Allocate the blocks of a running request, preempting younger ones if needed.

        Args:
            request: The request.
            num_positions: Leading positions that need blocks.
            scheduled: Requests that the step has already, which are not preempted.

        Returns:
            False if this request was preempted, now or before.
        """
        while request.table is not None:
            if self.cache.grow(request.table, num_positions):
                return True
            self._preempt(next(other for other in reversed(self.running) if other not in scheduled))
        return False

    def take(self, request: Request, chunk: Chunk, logits: Logits) -> None:
        """Give a request the logits that a step computed for its chunk, float32 [num_logits, vocab_size]."""
        num_fed = chunk.start + len(chunk.token_ids)
        if not chunk.is_decode:
            self.num_read += len(chunk.token_ids)
            request.take_prompt_logits(logits)
        if num_fed == request.num_prompt:
            self.contexts.keep_prompt(request)
        if not chunk.num_logits or (request.num_unread and num_fed < request.num_tokens):
            request.num_computed = num_fed
            return
        try:
            output = request.take_logits(logits if chunk.is_decode else logits[-1:], num_fed)
        except DraftproofError as error:  # invalid logits or parameters: the other requests continue
            self.fail(request, error)
            return
        if output is not None and output.is_final:
            self.end(request)
        else:
            self.contexts.commit(request)
        if output is not None:
            request.outputs.put_nowait(output)

    def expire(self) -> None:
        """End the requests whose deadline has passed."""
        now_s = time.monotonic()
        for request in (*self.running, *self.waiting):
            deadline_s = request.asked.deadline_s
            if deadline_s is not None and deadline_s < now_s:
                late = RequestTimeoutError(
                    f"the request's deadline passed {now_s - deadline_s:.3f} s ago: request "
                    f"{request.asked.request_id}, {request.num_output} tokens done",
                    "allow more time, lower max_tokens, or add capacity",
                )
                self.end(request)
                request.outputs.put_nowait(late)

    def fail(self, request: Request, error: DraftproofError) -> None:
        """End a request with an error and discard what it computed."""
        if request.table is not None:
            self.contexts.discard(request)
        self._remove(request)
        request.outputs.put_nowait(error)

    def end(self, request: Request) -> None:
        """Free the blocks of a request and remove it; does nothing the second time."""
        if request.table is not None:
            self.contexts.keep(request)
        self._remove(request)

    def keep_to(self, quota: int) -> None:
        """Let the requests use at most ``quota`` blocks from now on, preempting the youngest if needed."""
        self.cache.quota = quota
        while self.cache.num_used > quota:
            self._preempt(self.running[-1])

    def _preempt(self, request: Request) -> None:
        if not self.contexts.can_begin_again(request):
            self.end(request)
            request.outputs.put_nowait(request.cut_off())
            return
        self.contexts.keep(request)
        request.num_computed = 0
        self.running.remove(request)
        self.waiting.appendleft(request)

    def _remove(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)


@dataclass(frozen=True)
class ScheduledChunk:
    """One request's share of a step."""

    batch_class: BatchClass
    request: Request
    chunk: Chunk
