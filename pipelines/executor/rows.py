"""Continues a step that needs no plan: each of its requests computes one more row."""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf

from pipelines.executor.lane import Work
from pipelines.executor.step import Chunk


def next_rows(work: SequenceOf[Work], block_size: int) -> list[Work] | None:
    """Return the step that computes the next position of each request of a step that has been computed.

    Planning such a step, laying out its inputs and learning from it takes as long as a small draft computes.

    Returns:
        None if the next step has to be planned: a request has ended, its deadline has passed, it computed
        more than one row or has not exactly one to compute now, or its next position begins a block.
    """
    now_s = time.monotonic()
    if not all(_continues(item, block_size, now_s) for item in work):
        return None
    return [Work(item.lane, item.sequence, _next_row(item)) for item in work]


def _continues(item: Work, block_size: int, now_s: float) -> bool:
    sequence, chunk = item.sequence, item.chunk
    position = chunk.start + 1
    deadline_s = sequence.request.deadline_s
    return (
        sequence.is_proposing
        and (chunk.as_rows, len(chunk.token_ids), chunk.num_logits) == (True, 1, 1)
        and (sequence.num_computed, sequence.num_tokens) == (position, position + 1)
        and position % block_size != 0
        and (deadline_s is None or now_s <= deadline_s)
    )


def _next_row(item: Work) -> Chunk:
    position = item.chunk.start + 1
    token_ids = item.sequence.tokens[position : position + 1]
    # Blocks that the cache has replaced by those of a twin keep their contents until the next plan.
    return Chunk(token_ids, position, item.chunk.blocks, as_rows=True, num_logits=1)
