"""Ends the processes of a gateway that was killed.

A process whose standard input the gateway holds open notices the gateway's end in any case: the front door,
or a guard of its own where there is no front door. Model processes cannot do this themselves: the Python
backend waits for Triton in a call that blocks their interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.place import remove_shared_memory
from pipelines.triton.supervision.model_processes import kill_processes

_TIMEOUT_S = 5.0
_VARIABLE = "DRAFTPROOF_GUARDED"  # not an argument, so that a guard does not match its own search


def guarding(shared_memory_prefix: str) -> dict[str, str]:
    """Return the environment of a process that is to call ``end_with_the_gateway``."""
    return {**os.environ, _VARIABLE: shared_memory_prefix, "PYTHONPATH": str(REPOSITORY_ROOT)}


def start_guard(shared_memory_prefix: str) -> subprocess.Popen[bytes]:
    """Start a guard in a session of its own; it ends when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=REPOSITORY_ROOT,
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
