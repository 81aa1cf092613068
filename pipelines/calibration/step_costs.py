"""Times the steps of one engine."""

from __future__ import annotations

import statistics
import time

import numpy as np

from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, pack
from pipelines.speculation.calibration import EngineCosts

_CONTEXT, _LONG_CONTEXT = 64, 1024  # known positions before the rows
_ROWS_OF_LONG = 9
_PASSES = 4
_REPETITIONS = 2  # of the same shape in a pass
NUM_BLOCKS = 64


def measure_step_costs(engine: Engine, max_rows: int) -> EngineCosts:
    """Time steps of 2 to ``max_rows`` rows.

    Args:
        engine: With at least ``NUM_BLOCKS`` blocks; their content is lost.
        max_rows: Rows of the largest step that can occur.
    """
    # Closer where the time of a step bends: at rows that fill the processor's units, and after 64, where
    # the matrix products go over to another blocking.
    max_rows = max(max_rows, 3)  # costs are a line between two sizes at least
    sizes = [rows for rows in (2, 5, 9, 12, 16, 24, 32, 40, 48, 56, 64, 65, 80, 112, 144) if rows < max_rows]
    sizes.append(max_rows)
    for rows in sizes:
        _time_step(engine, rows, _CONTEXT)  # the first step of a size also makes its kernels
    # In passes, and of each size the least: another program that runs for a while must not make some
    # sizes look dear.
    times: dict[int, list[float]] = {rows: [] for rows in sizes}
    changes = []
    for _ in range(_PASSES):
        for rows in sizes:
            changed_s, *same = (_time_step(engine, rows, _CONTEXT) for _ in range(1 + _REPETITIONS))
            changes.append(changed_s - min(same))
            times[rows].extend(same)
    per_position_s = _seconds_per_position(engine)
    without_context = [
        max(min(times[rows]) - rows * _CONTEXT * per_position_s, min(times[rows]) / 2) for rows in sizes
    ]
    change_s = max(statistics.median(changes), 0.0)
    return EngineCosts(tuple(sizes), tuple(without_context), per_position_s, change_s)


def _seconds_per_position(engine: Engine) -> float:
    longest = min(_LONG_CONTEXT, engine.config.max_position_embeddings - _ROWS_OF_LONG)
    if longest <= _CONTEXT:
        return 0.0
    times: dict[int, list[float]] = {_CONTEXT: [], longest: []}
    for _ in range(_PASSES):
        for context, measured in times.items():
            measured.extend(_time_step(engine, _ROWS_OF_LONG, context) for _ in range(1 + _REPETITIONS))
    more_s = min(times[longest]) - min(times[_CONTEXT])
    return max(more_s / (_ROWS_OF_LONG * (longest - _CONTEXT)), 0.0)


def _time_step(engine: Engine, num_rows: int, context_len: int) -> float:
    blocks = range(1, 1 + -(-(context_len + num_rows) // engine.config.kv_block_size))
    chunk = Chunk(np.zeros(num_rows, np.int32), context_len, blocks, as_rows=True, num_logits=num_rows)
    inputs = pack([chunk], engine.config.kv_block_size)
    started_s = time.perf_counter()
    engine.step(inputs)
    return time.perf_counter() - started_s
