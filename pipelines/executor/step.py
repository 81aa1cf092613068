"""What one engine call computes."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.speculation.token_ids import TokenIds


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one request in one step.

    Attributes:
        token_ids: int32 [n].
        start: Absolute position of the first.
        blocks: Blocks of the request, enough for ``start + n`` positions.
        as_rows: Each token goes in as a sequence of its own of one token, all with the same blocks: the
            form in which a generated position has the same bits whatever else is computed. Otherwise
            the tokens are one sequence of at least two: prompt.
        num_logits: Logits are wanted of that many tokens, the last ones.
    """

    token_ids: TokenIds
    start: int
    blocks: SequenceOf[int]
    as_rows: bool
    num_logits: int

    @property
    def num_positions(self) -> int:
        """Sum of the context lengths of its tokens."""
        count = len(self.token_ids)
        return count * self.start + count * (count + 1) // 2


@dataclass(frozen=True)
class StepInputs:
    """Arguments of the PagedAttention network, named as its inputs.

    Attributes:
        input_ids: int64 [t], tokens of all sequences one after another.
        position_ids: int64 [t].
        past_lens: int32 [s], cached positions before the first token of each sequence.
        subsequence_begins: int32 [s + 1], where each sequence begins in ``input_ids``.
        block_indices: int32 [b], blocks of all sequences one after another.
        block_indices_begins: int32 [s + 1].
        max_context_len: int32 [], longest sequence, new tokens included.
        logits_rows: int32 [n], tokens whose logits are wanted.
    """

    input_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    past_lens: npt.NDArray[np.int32]
    subsequence_begins: npt.NDArray[np.int32]
    block_indices: npt.NDArray[np.int32]
    block_indices_begins: npt.NDArray[np.int32]
    max_context_len: npt.NDArray[np.int32]
    logits_rows: npt.NDArray[np.int32]


LEAST_TOKENS = 2
"""With a single token the matrix products run in another kernel."""

DUMMY_ROW = Chunk(np.zeros(1, np.int32), 0, (SCRATCH_BLOCK,), as_rows=True, num_logits=0)
"""A token that nobody asked for."""


def pack(chunks: SequenceOf[Chunk], block_size: int, num_tokens: int = 0) -> StepInputs:
    """Lay the chunks of one step out for the engine.

    A step of one token gets a dummy row: with a single token the matrix products run in another kernel
    with other last bits (docs/decisions/0002-rows.md).

    Args:
        chunks: At least one.
        block_size: Positions in a KV block.
        num_tokens: Tokens in the step at least; dummy rows make up for what is missing.

    Returns:
        The arguments; logits come back in the order of the chunks.
    """
    num_missing = max(num_tokens, LEAST_TOKENS) - sum(len(chunk.token_ids) for chunk in chunks)
    chunks = (*chunks, *[DUMMY_ROW] * num_missing)
    past_lens: list[int] = []
    lengths: list[int] = []
    blocks: list[int] = []
    num_blocks: list[int] = []
    logits_rows: list[int] = []
    positions: list[npt.NDArray[np.int64]] = []
    end = 0
    max_context_len = 0
    for chunk in chunks:
        count = len(chunk.token_ids)
        stop = chunk.start + count
        used = list(chunk.blocks[: -(-stop // block_size)])
        if chunk.as_rows:
            past_lens.extend(range(chunk.start, stop))
            lengths.extend([1] * count)
            blocks.extend(used * count)
            num_blocks.extend([len(used)] * count)
        else:
            past_lens.append(chunk.start)
            lengths.append(count)
            blocks.extend(used)
            num_blocks.append(len(used))
        positions.append(np.arange(chunk.start, stop))
        end += count
        logits_rows.extend(range(end - chunk.num_logits, end))
        max_context_len = max(max_context_len, stop)
    return StepInputs(
        input_ids=np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int64),
        position_ids=np.concatenate(positions),
        past_lens=np.array(past_lens, np.int32),
        subsequence_begins=_begins(lengths),
        block_indices=np.array(blocks, np.int32),
        block_indices_begins=_begins(num_blocks),
        max_context_len=np.array(max_context_len, np.int32),
        logits_rows=np.array(logits_rows, np.int32),
    )


def size_with_prompts(num_tokens: int) -> int:
    """Tokens to compute in a step that reads prompts, where ``num_tokens`` are needed.

    OpenVINO keeps some 4 MB of kernels for each number of tokens it has met, for good: with any number up
    to 512 that came to 2 GB for the two engines of ``demo-large``. These are few numbers, and 5 % more tokens
    (docs/decisions/0016-rows-of-a-step.md).
    """
    for limit, multiple in ((32, 4), (128, 8), (256, 16)):
        if num_tokens <= limit:
            return -(-num_tokens // multiple) * multiple
    return -(-num_tokens // 32) * 32


def _begins(lengths: list[int]) -> npt.NDArray[np.int32]:
    begins = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=begins[1:])
    return begins
