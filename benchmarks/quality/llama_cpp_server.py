"""Serve a GGUF file with llama.cpp's own server; its address is the last line of the output.

The interpreter of the environment ``llama-cpp`` runs this program: the package ``xllamacpp`` has that server.
"""

from __future__ import annotations

import os
import sys

import xllamacpp

_NUM_SLOTS = 8
_SLOT_TOKENS = 1024


def main() -> None:
    """Serve the file that the command line names until standard input ends."""
    parameters = xllamacpp.CommonParams()
    parameters.verbosity = -1
    parameters.model.path = sys.argv[1]
    parameters.n_parallel = _NUM_SLOTS
    parameters.n_ctx = _NUM_SLOTS * _SLOT_TOKENS
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
