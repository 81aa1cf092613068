"""Times the steps of one engine."""

from __future__ import annotations

import statistics
import time

import numpy as np

from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, pack
from pipelines.speculation.calibration import EngineCosts

_CONTEXT = 128  # known positions before the rows
_REPETITIONS = 7
NUM_BLOCKS = 64


def measure_step_costs(engine: Engine, max_rows: int) -> EngineCosts:
    """Time steps of 2 to ``max_rows`` rows.

    Args:
        engine: With at least ``NUM_BLOCKS`` blocks; their content is lost.
        max_rows: Rows of the largest step that can occur.
    """
    sizes = [rows for rows in (2, 3, 5, 9, 12, 16, 24, 40, 72, 144) if rows < max_rows]
    sizes.append(max(max_rows, 3))
    for rows in sizes:
        _time_step(engine, rows)  # the first step of a size also makes its kernels
    changes, medians = [], []
    for rows in sizes:
        first, *rest = (_time_step(engine, rows) for _ in range(_REPETITIONS + 1))
        medians.append(statistics.median(rest))
        changes.append(first - medians[-1])
    return EngineCosts(tuple(sizes), tuple(medians), max(statistics.median(changes), 0.0))


def _time_step(engine: Engine, num_rows: int) -> float:
    blocks = range(1, 1 + -(-(_CONTEXT + num_rows) // engine.config.kv_block_size))
    chunk = Chunk(np.zeros(num_rows, np.int32), _CONTEXT, blocks, as_rows=True, num_logits=num_rows)
    inputs = pack([chunk], engine.config.kv_block_size)
    started_s = time.perf_counter()
    engine.step(inputs)
    return time.perf_counter() - started_s
