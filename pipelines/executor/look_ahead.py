"""Computes what grammars allow while the engine computes the logits."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from pipelines.executor.lane import Work
from pipelines.executor.sequence import Sequence

_LIMIT_S = 0.05
"""Time of a step for the masks behind draft tokens, shared by its requests; a usual mask takes 50 us."""

_THREAD = ThreadPoolExecutor(1, thread_name_prefix="grammars")


@contextmanager
def looking_ahead(work: SequenceOf[Work]) -> Iterator[None]:
    """Prepare the choice of every token of a step on another thread, and wait for it at the end.

    A request whose grammar is too slow verifies fewer of its draft tokens, so that others need not wait.
    """
    guided = [item.sequence for item in work if item.chunk.num_logits and item.sequence.sampler.has_grammar]
    if not guided:
        yield
        return
    running = _THREAD.submit(_look_ahead, guided)
    try:
        yield
    finally:
        running.result()


def _look_ahead(sequences: SequenceOf[Sequence]) -> None:
    for sequence in sequences:
        with suppress(Exception):  # the choice will fail in the same way, for this request alone
            num_ready = sequence.sampler.look_ahead(sequence.draft_ids, _LIMIT_S / len(sequences))
            if num_ready < len(sequence.draft_ids):
                sequence.leave_out(len(sequence.draft_ids) - num_ready)
