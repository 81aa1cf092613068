"""Engines whose logits are a table over whole contexts, behind real executors that are stepped by hand."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.speculation.token_ids import Logits
from pipelines.text.vocabulary import Vocabulary
from tests.support.recording_engine import RecordingEngine

Result = TypeVar("Result")

Table = Callable[[tuple[int, ...]], Sequence[float] | Logits]
"""Maps a context, with all of its tokens, to logits."""

STEP = 0.25  # logits are multiples of it, so that ties occur and float32 is exact

_NUM_BLOCKS = 32


def table(name: str, vocab_size: int, spread: float = 1.5) -> Table:
    """Return logits between -spread and spread that depend on every token of the context, in order."""

    def logits(context: tuple[int, ...]) -> list[float]:
        digest = hashlib.sha256(f"{name}:{context}".encode()).digest()
        num_steps = int(2 * spread / STEP) + 1
        return [STEP * (byte % num_steps) - spread for byte in digest[:vocab_size]]

    return logits


def mixed(own: Table, other: Table, share: int) -> Table:
    """Return ``own`` after ``share`` of 4 contexts, otherwise ``other``."""

    def logits(context: tuple[int, ...]) -> list[float]:
        return (
            own(context) if hashlib.sha256(repr(context).encode()).digest()[0] % 4 < share else other(context)
        )

    return logits


def reversed_ranks(own: Table) -> Table:
    """Return the table with the ranking of ``own`` reversed."""
    return lambda context: [-2 * logit for logit in own(context)]


class TableEngine(RecordingEngine):
    """An engine that caches tokens instead of keys and values, and looks up its logits by them."""

    def __init__(self, logits: Table, vocab_size: int, role: str, num_blocks: int = _NUM_BLOCKS) -> None:
        super().__init__(num_blocks, role=role)
        self.config = dataclasses.replace(self.config, vocab_size=vocab_size)
        self._table = logits

    def _logits(self, context: bytes) -> Logits:
        tokens = np.frombuffer(context, int).reshape(2, -1)[0]
        return np.array(self._table(tuple(tokens.tolist())), np.float32)


def make_executor(logits: Table, vocabulary: Vocabulary, role: str) -> Executor:
    """Return an executor that steps as soon as it gets a request, until it has answered."""
    limits = ExecutorLimits(
        max_batch_size=2, max_num_tokens=16, max_seq_len=32, max_queue_size=2, num_kv_blocks=_NUM_BLOCKS
    )
    executor = Executor(TableEngine(logits, vocabulary.size, role), vocabulary, limits)

    def step_until_idle() -> None:
        while executor.has_work:
            executor.step()

    executor.on_work = step_until_idle
    return executor


def run_at_once(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        result: Result = stopped.value
        return result
    coroutine.close()
    raise AssertionError("the coroutine waits for something")
