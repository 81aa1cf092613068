"""Finds the processes of one Triton: Triton itself and one for each Python model; ends those a gateway left.

The command line of each contains the unique prefix of that Triton's shared memory.

A process whose standard input the gateway holds open notices the gateway's end in any case: the front door,
or a guard of its own where there is no front door. Model processes cannot do this themselves: the Python
backend waits for Triton in a call that blocks their interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pipelines.deploy.triton.install import TritonInstall
from pipelines.deploy.triton.place import remove_shared_memory
from pipelines.places import CODE
from pipelines.process import ProcessIdentity, processes_with

_TIMEOUT_S = 5.0
_VARIABLE = "DRAFTPROOF_GUARDED"  # not an argument, so that a guard does not match its own search


def find_model_processes(shared_memory_prefix: str) -> dict[str, ProcessIdentity]:
    """Return the processes of one Triton's models by the models' names.

    The backend starts ``triton_python_backend_stub <repository>/<model>/1/model.py <region> ...``.

    Args:
        shared_memory_prefix: Prefix of that Triton (``TritonPlace``).
    """
    return {
        Path(os.fsdecode(command[1])).parents[1].name: identity
        for identity, command in processes_with(shared_memory_prefix)
        if command[0].endswith(TritonInstall.STUB.encode())
    }


def kill_processes(shared_memory_prefix: str) -> list[ProcessIdentity]:
    """Kill a Triton and its model processes, and return them."""
    found = [identity for identity, _ in processes_with(shared_memory_prefix)]
    for identity in found:
        identity.kill()
    return found


def guarding(shared_memory_prefix: str) -> dict[str, str]:
    """Return the environment of a process that is to call ``end_with_the_gateway``."""
    return {**os.environ, _VARIABLE: shared_memory_prefix, "PYTHONPATH": str(CODE)}


def start_guard(shared_memory_prefix: str) -> subprocess.Popen[bytes]:
    """Start a guard in a session of its own; it ends when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=CODE,
        env=guarding(shared_memory_prefix),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_with_the_gateway() -> None:
    """Wait until standard input ends, kill what the gateway left, and end this process."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    if prefix := os.environ.get(_VARIABLE):
        deadline_s = time.monotonic() + _TIMEOUT_S
        while any(left.is_alive for left in kill_processes(prefix)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        remove_shared_memory(prefix)
    os._exit(1)


if __name__ == "__main__":
    end_with_the_gateway()
