"""Compares the bits of steps with few rows and with many, on an engine with many threads.

Run as ``python -m tests.unit.executor.rows_and_threads ENGINE THREADS [bare]``; prints the numbers of rows
whose logits differ. With ``bare``, steps have no sequences without tokens.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipelines.executor import engine as engine_module
from pipelines.executor.engine import Engine
from pipelines.executor.engine_config import EngineConfig
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles

NUM_PROMPT, NUM_OUTPUT = 70, 16
MOST_ROWS = 2 * NUM_OUTPUT
BLOCKS = (1, 2, 3)


def main(directory: str, num_threads: str, *options: str) -> None:
    """Print the numbers of rows whose logits differ from those of the largest step."""
    if options == ("bare",):
        engine_module.with_sequences = lambda inputs, least: inputs
    files = EngineFiles(Path(directory))
    engine = load_engine(
        files, 4, dataclasses.replace(EngineConfig.read(files), num_threads=int(num_threads))
    )
    assert engine._network._compiled.get_property("INFERENCE_NUM_THREADS") == int(num_threads)
    ids = np.random.default_rng(7).integers(1, 2000, NUM_PROMPT + NUM_OUTPUT).astype(np.int32)
    expected = decoded(engine, ids, 1, MOST_ROWS)
    numbers = [(rows, total) for rows in (1, 2, 4, 8) for total in range(rows, 12)]
    print([each for each in numbers if not np.array_equal(decoded(engine, ids, *each), expected)])


def decoded(
    engine: Engine, ids: npt.NDArray[np.int32], num_rows: int, num_tokens: int
) -> npt.NDArray[np.float32]:
    """Return the logits after a prompt, ``num_rows`` at a time in steps of ``num_tokens``."""
    block_size = engine.config.kv_block_size
    engine.step(pack([Chunk(ids[:NUM_PROMPT], 0, BLOCKS, is_decode=False, num_logits=1)], block_size))
    found = []
    for start in range(NUM_PROMPT, NUM_PROMPT + NUM_OUTPUT, num_rows):
        rows = Chunk(ids[start : start + num_rows], start, BLOCKS, is_decode=True, num_logits=num_rows)
        found.append(engine.step(pack([rows], block_size, num_tokens)).copy())
    return np.concatenate(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
