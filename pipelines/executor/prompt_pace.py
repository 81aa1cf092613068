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

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from pipelines.executor.lane import Work
from pipelines.executor.sequence import MIN_CHUNK_TOKENS, Sequence
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


class PromptPace:
    """Limits the prompts in the steps of one executor.

    Attributes:
        shared: The account that it shares with the other executors of its loop.
    """

    def __init__(self) -> None:
        self.shared = SharedTime()
        self._units_per_s = _FIRST_UNITS_PER_S
        self._answers_s = 0.0  # a step without prompts

    def fit(self, work: SequenceOf[Work]) -> list[Work]:
        """Shorten the prompts of a planned step, or leave them to a later one.

        The prompts are in the order of ``lane.in_turn``, with the same shares.

        Args:
            work: The planned step; at least two tokens of each prompt, and never all but one of its rest.
        """
        rows = [item for item in work if item.chunk.as_rows]
        prompts = [item for item in work if not item.chunk.as_rows]
        if self.shared.must_wait:
            now = [item for item in prompts if is_short(item.sequence)]
            prompts = now if rows or now else prompts[:1]
        units = self._units_per_s * (_BESIDE_ANSWERS_S if self.shared.num_answering else _ALONE_S)
        for index, item in enumerate(prompts):
            is_overtaken = (
                index == 0 and len(prompts) > 1 and _num_left(item.sequence) > _num_left(prompts[1].sequence)
            )
            share = units / 2 if is_overtaken else units
            least = _LEAST_TOKENS if index == 0 else MIN_CHUNK_TOKENS
            fitted = _shortened(item, max(int(share / _units_per_token(item.chunk)), least))
            units -= _units(fitted.chunk)
            rows.append(fitted)
            if units < MIN_CHUNK_TOKENS:
                break
        return rows

    def note(self, work: SequenceOf[Work], seconds: float) -> None:
        """Learn from a step and book its time."""
        prompts = [item for item in work if not item.chunk.as_rows]
        long_s = 0.0
        if prompts:
            units = sum(_units(item.chunk) for item in prompts)
            long = sum(_units(item.chunk) for item in prompts if not is_short(item.sequence))
            prompts_s = seconds if len(prompts) == len(work) else max(seconds - self._answers_s, seconds / 8)
            self._units_per_s += _UPDATE_SHARE * (units / prompts_s - self._units_per_s)
            long_s = prompts_s * long / units
        else:
            self._answers_s += _UPDATE_SHARE * (seconds - self._answers_s)
        self.shared.note(long_s, seconds - long_s)


def is_short(sequence: Sequence) -> bool:
    """Whether the rest of a prompt is read so soon that answers can wait for it."""
    return _num_left(sequence) * (1 + sequence.num_computed / _EQUAL_CONTEXT) <= _SHORT_UNITS


def _num_left(sequence: Sequence) -> int:
    return sequence.num_prompt - sequence.num_computed


def _units_per_token(chunk: Chunk) -> float:
    return 1 + chunk.start / _EQUAL_CONTEXT


def _units(chunk: Chunk) -> float:
    return len(chunk.token_ids) * _units_per_token(chunk)


def _shortened(item: Work, most: int) -> Work:
    chunk = item.chunk
    count = len(chunk.token_ids)
    if count <= most:
        return item
    multiple = 32 if most >= 32 else 2  # the attention works on 32 tokens at a time
    kept = most // multiple * multiple
    if _num_left(item.sequence) - kept == 1:
        kept -= 2
    if kept < MIN_CHUNK_TOKENS:
        return item
    num_logits = kept if chunk.num_logits == count else 0  # of all tokens, or of the last one
    return replace(item, chunk=chunk.first(kept, num_logits))
