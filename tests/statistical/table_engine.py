"""A table in place of a network, behind the real executor: it sees only what its cache holds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step import StepInputs
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from pipelines.speculation.loop import Round, speculate
from tests.statistical.outcomes import Counter, Counts
from tests.statistical.tables import PROMPT, Pair, Table
from tests.support.recording_engine import BLOCK_SIZE, recording_config

_NUM_BLOCKS = 128
_LIMITS = ExecutorLimits(
    max_batch_size=16, max_num_tokens=96, max_seq_len=16, max_queue_size=64, num_kv_blocks=_NUM_BLOCKS
)
_AT_ONCE = 16


class TableEngine:
    """An engine that caches tokens where a network caches keys and values."""

    is_busy = False

    def __init__(self, table: Table, role: str) -> None:
        self.config = replace(recording_config(role), vocab_size=table.vocab_size)
        self._table = table
        self._tokens = np.zeros((_NUM_BLOCKS, BLOCK_SIZE), int)

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        contexts: list[tuple[npt.NDArray[np.int32], int]] = []
        begins = inputs.block_indices_begins
        spans = zip(inputs.subsequence_begins, inputs.subsequence_begins[1:], strict=False)
        for index, (begin, end) in enumerate(spans):
            blocks = inputs.block_indices[begins[index] : begins[index + 1]]
            for row in range(begin, end):
                position = int(inputs.position_ids[row])
                self._tokens[blocks[position // BLOCK_SIZE], position % BLOCK_SIZE] = inputs.input_ids[row]
                contexts.append((blocks, position + 1))
        rows = []
        for row in inputs.logits_rows:
            blocks, length = contexts[row]
            seen = self._tokens[blocks].ravel()[len(PROMPT) : length]
            rows.append(self._table.row(seen.tolist()))
        return np.stack(rows) if rows else np.empty((0, self._table.vocab_size), np.float32)

    def copy_block(self, source: int, destination: int) -> None:
        self._tokens[destination] = self._tokens[source]


def count_served(pair: Pair, use_draft_logits: bool, seeds: range) -> Counts:
    """Count as ``counting.count`` does, with concurrent requests to executors that batch and cache."""
    draft, target = (
        Executor(TableEngine(table, role), table.vocabulary, _LIMITS)
        for table, role in zip(pair.tables(), ("draft", "target"), strict=True)
    )
    counter = Counter(pair, use_draft_logits)

    async def answer(seed: int) -> list[Round]:
        rounds = speculate(
            pair.with_seed(seed),
            draft.complete,
            target.complete,
            FixedDraftLength(pair.num_draft_tokens),
            use_draft_logits=use_draft_logits,
        )
        return [part async for part in rounds]

    async def answer_all() -> None:
        for begin in range(seeds.start, seeds.stop, _AT_ONCE):
            wave = range(begin, min(begin + _AT_ONCE, seeds.stop))
            for rounds in await asyncio.gather(*map(answer, wave)):
                counter.take(rounds)

    loop = StepLoop([draft, target])
    loop.start()
    try:
        loop.spawn(answer_all()).result()
    finally:
        loop.stop()
    return counter.counts
