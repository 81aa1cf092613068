"""Spawns the ranks of both engines with Open MPI, as the orchestrator in NVIDIA's backend does.

By reading cpp/tensorrt_llm/executor/executorImpl.cpp (@95c8e29a2 of a copy of 1.3.0rc3): every engine is
loaded in a thread of its own, which calls ``MPI_Comm_spawn`` with ``bind_to: none`` for its ranks.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import sys
import threading
from pathlib import Path

RANKS = int(os.environ.get("STAND_IN_RANKS", "2"))
_THREAD_MULTIPLE = 3


def library() -> ctypes.CDLL | None:
    """Open MPI's library, or None where it is not installed."""
    name = ctypes.util.find_library("mpi") or "libmpi.so.40"
    try:
        return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def _initialized() -> ctypes.CDLL:
    mpi = library()
    assert mpi is not None
    assert mpi.MPI_Init_thread(None, None, _THREAD_MULTIPLE, ctypes.byref(ctypes.c_int())) == 0
    return mpi


def _record(role: str) -> None:
    names = ("TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE", "TRTLLM_ORCHESTRATOR", "PYTHONPATH")
    seen = {"cores": len(os.sched_getaffinity(0)), **{name: os.environ.get(name) for name in names}}
    path = Path(os.environ["STAND_IN_STATE"]) / f"rank-{role}-{os.getpid()}.json"
    path.write_text(json.dumps(seen))


class Orchestrator:
    """The ranks of both engines, from the constructor, which returns when they run, to ``end``."""

    def __init__(self) -> None:
        self._mpi = _initialized()
        self._workers: list[ctypes.c_void_p] = []
        _record("server")
        threads = [threading.Thread(target=self._spawn, args=(role,)) for role in ("draft", "target")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _spawn(self, role: str) -> None:
        mpi, info, workers = self._mpi, ctypes.c_void_p(), ctypes.c_void_p()
        mpi.MPI_Info_create(ctypes.byref(info))
        mpi.MPI_Info_set(info, b"bind_to", b"none")
        words = [b"-m", b"tests.stand_in_tensorrt_llm.ranks", role.encode(), None]
        command = (sys.executable.encode(), (ctypes.c_char_p * len(words))(*words), RANKS, info, 0)
        alone = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_self"))
        mpi.MPI_Comm_spawn(*command, alone, ctypes.byref(workers), None)  # an error ends the whole job
        self._workers.append(workers)

    def end(self) -> None:
        for workers in self._workers:
            self._mpi.MPI_Comm_disconnect(ctypes.byref(workers))
        self._mpi.MPI_Finalize()


if __name__ == "__main__":
    mpi = _initialized()
    _record(sys.argv[1])
    orchestrator = ctypes.c_void_p()
    mpi.MPI_Comm_get_parent(ctypes.byref(orchestrator))
    mpi.MPI_Comm_disconnect(ctypes.byref(orchestrator))  # waits for the server's end
    mpi.MPI_Finalize()
