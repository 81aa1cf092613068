"""Measure the memory bandwidth of this machine, which limits a decode step that reads every weight once.

The C library's ``memchr`` searches a buffer for a byte that it does not contain: a pure read with the widest
loads of the processor, without a compiler and without holding Python's lock. ``python -m
pipelines.bench.costs.memory_bandwidth`` prints the result.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

METHOD = "memchr of the C library over a 512 MiB buffer, one slice per thread; best of 5 passes"
_BUFFER_BYTES = 512 * 2**20  # many times larger than the last-level cache
_NUM_PASSES = 5


@dataclass(frozen=True)
class MemoryBandwidth:
    """One measurement of the bandwidth.

    Attributes:
        bytes_per_s: Bytes per second of all threads together in the best pass.
        median_bytes_per_s: Median over the passes, which shows other load of the machine.
        num_threads: Number of reading threads.
        method: Method of measurement.
    """

    bytes_per_s: float
    median_bytes_per_s: float
    num_threads: int
    method: str = METHOD


def measure_memory_bandwidth(num_threads: int) -> MemoryBandwidth:
    """Read a large buffer several times; takes about a quarter of a second and 512 MiB.

    Args:
        num_threads: Number of threads, as many as the engine uses.
    """
    memchr = ctypes.CDLL(None).memchr
    memchr.restype = ctypes.c_void_p
    memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    buffer = np.ones(_BUFFER_BYTES, np.uint8)
    slice_bytes = _BUFFER_BYTES // num_threads
    seconds = []
    for _ in range(_NUM_PASSES):
        barrier = threading.Barrier(num_threads + 1)

        def read(address: int, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            found = memchr(address, 0, slice_bytes)
            barrier.wait()
            assert found is None

        threads = [
            threading.Thread(target=read, args=(buffer.ctypes.data + index * slice_bytes,))
            for index in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        barrier.wait()
        started_s = time.perf_counter()
        barrier.wait()
        seconds.append(time.perf_counter() - started_s)
        for thread in threads:
            thread.join()
    read_bytes = slice_bytes * num_threads
    return MemoryBandwidth(read_bytes / min(seconds), read_bytes / float(np.median(seconds)), num_threads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bandwidth in GB/s as JSON."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.bench.costs.memory_bandwidth")
    parser.add_argument("--threads", type=int, default=2, help="number of reading threads (%(default)s)")
    measured = measure_memory_bandwidth(parser.parse_args(arguments).threads)
    print(json.dumps({**vars(measured), "gb_per_s": round(measured.bytes_per_s / 1e9, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
