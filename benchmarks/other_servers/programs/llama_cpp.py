"""Serve the demonstration pair with llama.cpp's own server, with the draft or without, or a GGUF file.

The interpreter of the environment ``llama-cpp`` runs this program: the package ``xllamacpp`` has that server.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

import xllamacpp

from benchmarks.other_servers.programs.gguf_file import write_gguf

_NUM_SLOTS = 8
_SLOT_TOKENS = 1024


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", type=Path, help="folder of the demonstration pair, or a GGUF file")
    parser.add_argument(
        "--files", type=Path, required=True, help="folder for the files in llama.cpp's format"
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--speculative", action="store_true", help="use the draft")
    options = parser.parse_args()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(_file(options.files, options.pair, "target"))
    parameters.model_alias = {"demo"}
    parameters.port = options.port
    parameters.n_parallel = _NUM_SLOTS
    parameters.n_ctx = _NUM_SLOTS * _SLOT_TOKENS
    num_threads = len(os.sched_getaffinity(0)) if options.pair.is_file() else 1  # two servers share the cores
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = num_threads
    parameters.endpoint_metrics = True
    if options.speculative:
        kinds = xllamacpp.common_speculative_type
        parameters.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        parameters.speculative.draft.mparams.path = str(_file(options.files, options.pair, "draft"))
    server = xllamacpp.Server(parameters)
    print(f"listening on {server.listening_address}", flush=True)
    threading.Event().wait()


def _file(files: Path, pair: Path, role: str) -> Path:
    if pair.is_file():
        return pair
    path = files / f"{role}.gguf"
    if not path.is_file():
        made = path.with_suffix(f".{os.getpid()}")  # both servers may begin together
        write_gguf(made, pair / role, pair / "target" / "tokenizer.json")
        made.replace(path)
    return path


if __name__ == "__main__":
    main()
