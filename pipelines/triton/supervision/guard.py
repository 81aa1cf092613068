"""Kills the processes of a gateway that was killed.

The gateway holds the guard's standard input open, so the guard notices its end in any case. Model processes
cannot do this themselves: the Python backend waits for Triton in a call that blocks their interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.place import remove_shared_memory
from pipelines.triton.supervision.model_processes import kill_processes

_TIMEOUT_S = 5.0
_VARIABLE = "DRAFTPROOF_GUARDED"  # not an argument, so that the guard does not match its own search


def start_guard(shared_memory_prefix: str) -> subprocess.Popen[bytes]:
    """Start a guard in a session of its own; it ends when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=REPOSITORY_ROOT,
        env={**os.environ, _VARIABLE: shared_memory_prefix, "PYTHONPATH": str(REPOSITORY_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> int:
    """Wait for the end of the gateway, then kill its processes and remove their shared memory."""
    prefix = os.environ[_VARIABLE]
    sys.stdin.buffer.read()
    deadline_s = time.monotonic() + _TIMEOUT_S
    while any(Path(f"/proc/{left.pid}").exists() for left in kill_processes(prefix)):
        if time.monotonic() > deadline_s:
            return 1
        time.sleep(0.05)
    remove_shared_memory(prefix)
    return 0


if __name__ == "__main__":
    sys.exit(main())
