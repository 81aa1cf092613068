"""One server of the simulation: prompts one after the other, answers all together, and a prefix cache.

While a prompt is computed no answer goes on; the real scheduler mixes both in its steps. What a server does
between two events is known when the first is handled, so its state is brought up to date at events only.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass

from benchmarks.fleet_simulation.service_times import ServiceTimes


@dataclass(eq=False)
class Answer:
    """One answer, and what became of it.

    Attributes:
        prefix: Number of the text with which its prompt begins.
        prefix_tokens: Tokens of that text.
        own_tokens: Tokens of the prompt after it.
        num_tokens: Output tokens.
        asked_at_s: When the client asked.
        first_at_s: When the first token came; None before.
        was_cached: Whether its first server had the prefix.
        broken_at_s: When its server died; None if it did not.
        continued_at_s: When the next token came after that.
        num_given: Output tokens that the client had then.
    """

    prefix: int
    prefix_tokens: int
    own_tokens: int
    num_tokens: int
    asked_at_s: float
    first_at_s: float | None = None
    was_cached: bool | None = None
    broken_at_s: float | None = None
    continued_at_s: float | None = None
    num_given: int = 0


class SimulatedServer:
    """Computes answers at recorded speed.

    Attributes:
        address: Its name.
        busy_s: Time during which it had something to compute.
        version: Changes with its next event, so that an event planned before is known to be void.

    Args:
        address: Its name.
        times: Its speed.
        num_prefixes: Prefixes that its cache holds.
    """

    def __init__(self, address: str, times: ServiceTimes, num_prefixes: int) -> None:
        self.address = address
        self.busy_s = 0.0
        self.version = 0
        self._times = times
        self._num_prefixes = num_prefixes
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._waiting: deque[Answer] = deque()
        self._prompts: deque[list[float]] = deque()  # seconds left, in the order of _beginning
        self._beginning: deque[Answer] = deque()
        self._running: list[tuple[float, int, Answer]] = []
        self._num_begun = 0
        self._tokens_each = 0.0  # that an answer has got which runs from the start
        self._at_s = 0.0

    def add(self, answer: Answer, now_s: float) -> None:
        """Take an answer."""
        self._follow(now_s)
        self._waiting.append(answer)
        self._admit()

    def next_event_s(self) -> float | None:
        """Return when a prompt or an answer is complete; None if there is none."""
        if self._prompts:
            return self._at_s + self._prompts[0][0]
        if self._running:
            missing = self._running[0][0] - self._tokens_each
            return self._at_s + max(0.0, missing) / self._times.speed(len(self._running))
        return None

    def complete(self, now_s: float) -> Answer | None:
        """Complete what is due; returns an answer that has ended."""
        self._follow(now_s)
        if self._prompts:
            self._prompts.popleft()
            answer = self._beginning.popleft()
            if answer.first_at_s is None:
                answer.first_at_s = now_s
            if answer.broken_at_s is not None and answer.continued_at_s is None:
                answer.continued_at_s = now_s
            self._num_begun += 1
            ends_at = self._tokens_each + answer.num_tokens - answer.num_given
            heapq.heappush(self._running, (ends_at, self._num_begun, answer))
            return None
        *_, answer = heapq.heappop(self._running)
        self._admit()
        return answer

    def die(self, now_s: float) -> list[Answer]:
        """Lose everything; returns the answers that are not complete."""
        self._follow(now_s)
        for ends_at, _, answer in self._running:
            answer.num_given = answer.num_tokens - max(1, round(ends_at - self._tokens_each))
        left = [*(answer for *_, answer in self._running), *self._beginning, *self._waiting]
        for queue in (self._running, self._beginning, self._waiting, self._prompts, self._cache):
            queue.clear()
        self.version += 1
        return left

    def _follow(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        self._at_s = now_s
        self.version += 1
        if self._prompts:
            self._prompts[0][0] = max(0.0, self._prompts[0][0] - passed_s)
        elif self._running:
            self._tokens_each += passed_s * self._times.speed(len(self._running))
        else:
            return
        self.busy_s += passed_s

    def _admit(self) -> None:
        while self._waiting and len(self._running) + len(self._prompts) < self._times.max_batch_size:
            answer = self._waiting.popleft()
            is_cached = answer.prefix in self._cache
            if answer.was_cached is None:
                answer.was_cached = is_cached
            self._cache[answer.prefix] = None
            self._cache.move_to_end(answer.prefix)
            if len(self._cache) > self._num_prefixes:
                self._cache.popitem(last=False)
            new_tokens = answer.own_tokens + answer.num_given
            if not is_cached:
                new_tokens += answer.prefix_tokens
            self._beginning.append(answer)
            self._prompts.append([new_tokens / self._times.prompt_tokens_per_s])
