"""Divides time between prompts that are read and answers that are written.

Reading 32,000 tokens takes minutes. A step with a chunk of such a prompt is therefore short, so that requests
that arrive or end need not wait for it, and prompts that are almost read go beside it. While answers are
written, long prompts get a share of the time, by requests: an answer counts twice, so one long prompt makes
the time between the tokens of another request at most 1.5 times as long on average, and gets a third of the
time however many short prompts arrive. The draft may read a prompt that the target has read already, so the
executors of a loop share the account.

How a prompt is cut never changes a bit (docs/decisions/exact-rows.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.executor.batch_class import ScheduledChunk
from pipelines.executor.request import MIN_CHUNK_TOKENS, Request
from pipelines.executor.step import Chunk

# Longest time of a step for prompts, alone and beside answers; shorter chunks than these are inefficient.
_ALONE_S, _BESIDE_ANSWERS_S = 0.5, 0.1
_LEAST_TOKENS = 16
# In units of a token without context. An attention to this many positions takes as long as all else that is
# computed for a token: 2,400 with 1 billion parameters, 3,000 with 450 million.
_EQUAL_CONTEXT = 2500
_SHORT_UNITS = 256.0
_FIRST_UNITS_PER_S = 256.0
_UPDATE_SHARE = 0.3
_ANSWER_WEIGHT = 2


@dataclass
class SharedTime:
    """The account of the executors of one loop.

    Attributes:
        num_reading: Requests whose long prompt is being read.
        num_answering: Requests with an answer or proposal being written.
        debt_s: Time by which long prompts are ahead of their share.
    """

    num_reading: int = 0
    num_answering: int = 0
    debt_s: float = 0.0

    @property
    def must_wait(self) -> bool:
        """Whether it is the answers' turn."""
        return self.num_answering > 0 and self.debt_s > 0

    def note(self, long_s: float, others_s: float) -> None:
        """Note how long a step computed long prompts, and how long it computed answers and short prompts."""
        if self.num_answering:
            self.debt_s += long_s
        earned_s = others_s * self.num_reading / (_ANSWER_WEIGHT * max(self.num_answering, 1))
        self.debt_s = max(self.debt_s - earned_s, 0.0)


class ChunkBudget:
    """Limits the prompts in the steps of one executor.

    Attributes:
        shared: The account that it shares with the other executors of its loop.
    """

    def __init__(self) -> None:
        self.shared = SharedTime()
        self._units_per_s = _FIRST_UNITS_PER_S
        self._answers_s = 0.0  # a step without prompts

    @property
    def units(self) -> float:
        """Units that the prompts of the next step may take together."""
        return self._units_per_s * (_BESIDE_ANSWERS_S if self.shared.num_answering else _ALONE_S)

    def seconds(self, begin: int, end: int) -> float:
        """Return about how long the engine takes to compute these positions of a prompt."""
        return (end - begin) * units_per_token((begin + end) // 2) / self._units_per_s

    def note(self, step: Sequence[ScheduledChunk], seconds: float) -> None:
        """Learn from a computed step and book its time, before its requests take their logits."""
        costs = [(_units(each.chunk), is_short(each.request)) for each in step if not each.chunk.is_decode]
        long_s = 0.0
        if costs:
            units = sum(cost for cost, _ in costs)
            prompts_s = seconds if len(costs) == len(step) else max(seconds - self._answers_s, seconds / 8)
            self._units_per_s += _UPDATE_SHARE * (units / prompts_s - self._units_per_s)
            long_s = prompts_s * sum(cost for cost, short in costs if not short) / units
        else:
            self._answers_s += _UPDATE_SHARE * (seconds - self._answers_s)
        self.shared.note(long_s, seconds - long_s)


def units_per_token(position: int) -> float:
    """Return the cost of a token at a position."""
    return 1 + position / _EQUAL_CONTEXT


def _units(chunk: Chunk) -> float:
    return len(chunk.token_ids) * units_per_token(chunk.start)


def is_short(request: Request) -> bool:
    """Whether the rest of a prompt is read so soon that answers can wait for it."""
    return request.num_unread * units_per_token(request.num_computed) <= _SHORT_UNITS


def fitting_tokens(request: Request, units: float, *, is_first: bool) -> int:
    """Return how many tokens of a prompt a step may compute with a number of units.

    Args:
        request: The request.
        units: The units.
        is_first: Whether no other prompt is in the step, so that it computes a few tokens in any case.
    """
    least = _LEAST_TOKENS if is_first else MIN_CHUNK_TOKENS
    count = max(int(units / units_per_token(request.num_computed)), least)
    if count >= request.num_unread:
        return count
    multiple = 32 if count >= 32 else 2  # the attention works on 32 tokens at a time
    return count // multiple * multiple
