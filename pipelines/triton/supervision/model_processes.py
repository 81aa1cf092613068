"""Finds and kills the processes of one Triton: Triton itself and one for each Python model.

The command line of each contains the unique prefix of that Triton's shared memory.
"""

from __future__ import annotations

import os
from pathlib import Path

from pipelines.deploy.triton.install import TritonInstall
from pipelines.process import ProcessIdentity, processes_with


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
