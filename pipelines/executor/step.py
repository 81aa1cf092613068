"""Lays out the inputs of an engine step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import InternalError
from pipelines.executor.kv_cache import SCRATCH_BLOCK
from pipelines.speculation.token_ids import TokenIds


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one request in one step.

    Attributes:
        token_ids: int32 [n].
        start: Absolute position of the first token.
        blocks: Blocks of the request, enough for ``start + n`` positions.
        is_decode: Whether the tokens are decode tokens: each is a sequence of its own, all with the same
            blocks. In this form a generated position has the same bits whatever else is computed. Otherwise
            the tokens are one sequence of at least two: part of a prompt.
        num_logits: Number of last tokens whose logits are returned.
        features: The target's states, which a trained head reads beside known tokens, float32 [n, size].
        hidden: Its own output at the position before, float32 [1, hidden], beside a single drafted token.
        slot: Place of the request's recurrent states, or ``NO_SLOT``; None for networks without.
    """

    token_ids: TokenIds
    start: int
    blocks: Sequence[int]
    is_decode: bool
    num_logits: int
    features: npt.NDArray[np.float32] | None = None
    hidden: npt.NDArray[np.float32] | None = None
    slot: int | None = None


@dataclass(frozen=True)
class StepInputs:
    """Arguments of the PagedAttention network, named after its inputs.

    Attributes:
        input_ids: int64 [t], tokens of all sequences.
        position_ids: int64 [t].
        past_lens: int32 [s], cached positions before the first token of each sequence.
        subsequence_begins: int32 [s + 1], start of each sequence in ``input_ids``.
        block_indices: int32 [b], blocks of all sequences.
        block_indices_begins: int32 [s + 1].
        max_context_len: int32 [], longest sequence including new tokens.
        logits_rows: int32 [n], tokens whose logits are returned.
        features: float32 [f, size], the target's hidden states for known tokens of a trained head; None for
            other networks, or if there are none.
        hidden: float32 [h, hidden], the head's own output for drafted tokens; None likewise.
        hidden_rows: int32 [t], for each token a row of ``features`` or, counted behind those, of ``hidden``.
        slots: int32 [s], slot of each sequence's recurrent states, or ``NO_SLOT``; None for networks without.
    """

    input_ids: npt.NDArray[np.int64]
    position_ids: npt.NDArray[np.int64]
    past_lens: npt.NDArray[np.int32]
    subsequence_begins: npt.NDArray[np.int32]
    block_indices: npt.NDArray[np.int32]
    block_indices_begins: npt.NDArray[np.int32]
    max_context_len: npt.NDArray[np.int32]
    logits_rows: npt.NDArray[np.int32]
    features: npt.NDArray[np.float32] | None = None
    hidden: npt.NDArray[np.float32] | None = None
    hidden_rows: npt.NDArray[np.int32] | None = None
    slots: npt.NDArray[np.int32] | None = None

    def moved_on(self, token_ids: Sequence[int], hidden: npt.NDArray[np.float32] | None = None) -> StepInputs:
        """Return the inputs of the next position of each request of a step of single decode tokens.

        Args:
            token_ids: The token of each request; dummy rows after them stay where they are. No request begins
                a block.
            hidden: Output of a trained head for each request, float32 [n, hidden], copied; None for others.
        """
        is_moved = np.arange(len(self.input_ids)) < len(token_ids)
        input_ids = self.input_ids.copy()
        input_ids[: len(token_ids)] = token_ids
        return replace(
            self,
            input_ids=input_ids,
            position_ids=self.position_ids + is_moved,
            past_lens=self.past_lens + is_moved,
            max_context_len=np.array(self.max_context_len + 1, np.int32),
            features=None,
            hidden=None if hidden is None else hidden[: len(token_ids)].copy(),
            hidden_rows=None if hidden is None else np.cumsum(is_moved, dtype=np.int32) - 1,
        )


NO_SLOT = -1
"""Marks what belongs to no request, and therefore has no recurrent state: dummy rows, and a warm-up."""

WARM_UP_TOKEN = Chunk(np.zeros(1, np.int32), 0, (SCRATCH_BLOCK,), is_decode=True, num_logits=1, slot=NO_SLOT)
"""A token that belongs to no request, with logits, so that a first step prepares the output head too."""


def pack(chunks: Sequence[Chunk], block_size: int, num_tokens: int = 0) -> StepInputs:
    """Lay out the chunks of a step for the engine.

    Args:
        chunks: At least one chunk.
        block_size: Positions in a KV block.
        num_tokens: Minimum number of tokens in the step; dummy rows fill it up.

    Returns:
        The arguments; logits come back in the order of the chunks.

    Raises:
        InternalError: A chunk has more or less of something than its tokens need.
    """
    _check(chunks, block_size)
    token_ids: list[int] = []
    positions: list[int] = []
    past_lens: list[int] = []
    begins = [0]
    blocks: list[int] = []
    blocks_begins = [0]
    logits_rows: list[int] = []
    slots: list[int | None] = []
    for chunk in chunks:
        count = len(chunk.token_ids)
        stop = chunk.start + count
        used = chunk.blocks[: -(-stop // block_size)]
        num_sequences, length = (count, 1) if chunk.is_decode else (1, count)
        begin = len(token_ids)
        token_ids.extend(chunk.token_ids.tolist())
        positions.extend(range(chunk.start, stop))
        past_lens.extend(range(chunk.start, chunk.start + num_sequences))
        end = len(token_ids)
        begins.extend(range(begin + length, end + 1, length))
        for _ in range(num_sequences):
            blocks.extend(used)
            blocks_begins.append(len(blocks))
        slots += [chunk.slot] * num_sequences
        logits_rows.extend(range(end - chunk.num_logits, end))
    inputs = StepInputs(
        input_ids=np.array(token_ids, np.int64),
        position_ids=np.array(positions, np.int64),
        past_lens=np.array(past_lens, np.int32),
        subsequence_begins=np.array(begins, np.int32),
        block_indices=np.array(blocks, np.int32),
        block_indices_begins=np.array(blocks_begins, np.int32),
        max_context_len=np.array(max(positions) + 1, np.int32),
        logits_rows=np.array(logits_rows, np.int32),
        **_read_by_head(chunks),
        slots=None if None in slots else np.array(slots, np.int32),
    )
    return with_tokens(inputs, num_tokens)


def _check(chunks: Sequence[Chunk], block_size: int) -> None:
    kinds = set()
    for chunk in chunks:
        count = len(chunk.token_ids)
        states = [len(each) for each in (chunk.features, chunk.hidden) if each is not None]
        kinds.add(bool(states))
        is_whole = 0 <= chunk.num_logits <= count and count > 0 and states in ([], [count])
        if not is_whole or len(chunk.blocks) * block_size < chunk.start + count or len(kinds) > 1:
            raise InternalError(
                f"the chunks of a step do not fit together: {count} tokens from position {chunk.start} on, "
                f"{states} states, {chunk.num_logits} logits, {len(chunk.blocks)} blocks of {block_size}",
                "report it: this is a bug in Draftproof",
            )


def _read_by_head(chunks: Sequence[Chunk]) -> dict[str, Any]:
    features = [chunk.features for chunk in chunks if chunk.features is not None]
    hidden = [chunk.hidden for chunk in chunks if chunk.hidden is not None]
    if not features and not hidden:
        return {}
    is_own = np.repeat(
        [chunk.hidden is not None for chunk in chunks], [len(each.token_ids) for each in chunks]
    )
    return {
        "features": np.concatenate(features) if features else None,
        "hidden": np.concatenate(hidden) if hidden else None,
        "hidden_rows": np.argsort(np.argsort(is_own, kind="stable")).astype(np.int32),
    }


def with_tokens(inputs: StepInputs, least: int) -> StepInputs:
    """Add dummy rows, which belong to no request, so that a step has at least so many tokens."""
    num_missing = least - len(inputs.input_ids)
    if num_missing <= 0:
        return inputs
    more = np.arange(1, num_missing + 1, dtype=np.int32)
    zeros = np.zeros(num_missing, np.int64)
    return replace(
        inputs,
        input_ids=np.append(inputs.input_ids, zeros),
        position_ids=np.append(inputs.position_ids, zeros),
        past_lens=np.append(inputs.past_lens, zeros.astype(np.int32)),
        subsequence_begins=np.append(inputs.subsequence_begins, inputs.subsequence_begins[-1] + more),
        block_indices=np.append(inputs.block_indices, np.full(num_missing, SCRATCH_BLOCK, np.int32)),
        block_indices_begins=np.append(inputs.block_indices_begins, inputs.block_indices_begins[-1] + more),
        slots=_with_dummies(inputs.slots, num_missing),
        hidden_rows=None
        if inputs.hidden_rows is None
        else np.append(inputs.hidden_rows, zeros.astype(np.int32)),
    )


def with_states(inputs: StepInputs, hidden_size: int, num_layers: int) -> StepInputs:
    """Add what a trained head reads and the inputs lack: no features, or a hidden state of zeros."""
    features, hidden, rows = inputs.features, inputs.hidden, inputs.hidden_rows
    if features is None:
        features = np.empty((0, num_layers * hidden_size), np.float32)
    if hidden is None:
        hidden = np.zeros((0 if len(features) else 1, hidden_size), np.float32)
    if rows is None:
        rows = np.zeros(len(inputs.input_ids), np.int32)
    return replace(inputs, features=features, hidden=hidden, hidden_rows=rows)


def with_sequences(inputs: StepInputs, least: int) -> StepInputs:
    """Add sequences without tokens, so that a step has at least so many sequences.

    With fewer sequences than threads, and no chunk among them, OpenVINO 2026.4 divides the attention of a row
    among threads and adds the parts in another order; it also ignores a sliding window then
    (``exec_loop_bhl`` in ``executor_pa.cpp``). A sequence without tokens costs nothing.
    """
    num_missing = least - len(inputs.past_lens)
    if num_missing <= 0:
        return inputs
    return replace(
        inputs,
        past_lens=np.append(inputs.past_lens, np.zeros(num_missing, np.int32)),
        subsequence_begins=_repeat_last(inputs.subsequence_begins, num_missing),
        block_indices_begins=_repeat_last(inputs.block_indices_begins, num_missing),
        slots=_with_dummies(inputs.slots, num_missing),
    )


def _with_dummies(slots: npt.NDArray[np.int32] | None, count: int) -> npt.NDArray[np.int32] | None:
    return slots if slots is None else np.append(slots, np.full(count, NO_SLOT, np.int32))


def _repeat_last(begins: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int32]:
    return np.append(begins, np.repeat(begins[-1:], count))


def padded_size(num_tokens: int, *, has_prompt: bool) -> int:
    """Return how many tokens a step computes, dummy rows included, so that steps have few different sizes.

    An engine prepares each size at its first use. With prompts, OpenVINO permanently keeps about 4 MB of
    kernels for each: 2 GB for the two engines of ``demo-large`` with all sizes up to 512. Rounding leaves few
    sizes for 5 % more tokens.
    """
    if has_prompt:
        limits: tuple[tuple[float, int], ...] = ((32, 4), (128, 8), (256, 16), (math.inf, 32))
    else:
        limits = ((16, 1), (64, 2), (math.inf, 8))
    multiple = next(multiple for limit, multiple in limits if num_tokens <= limit)
    return -(-num_tokens // multiple) * multiple
