"""Finds and kills the processes of one Triton: Triton itself and one for each Python model.

The command line of each contains the unique prefix of that Triton's shared memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.process import ProcessIdentity, processes_with
from pipelines.deploy.triton.install import TritonInstall


@dataclass(frozen=True)
class ModelProcess:
    """The process of a model.

    Attributes:
        model: Name of the model.
        identity: The process.
    """

    model: str
    identity: ProcessIdentity

    @property
    def is_alive(self) -> bool:
        """Whether it is running."""
        return self.identity.is_alive

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has paused it."""
        return self.identity.is_stopped

    def kill(self) -> None:
        """Kill the process."""
        self.identity.kill()


def find_model_processes(shared_memory_prefix: str) -> list[ModelProcess]:
    """Find the processes of one Triton's models.

    The backend starts ``triton_python_backend_stub <repository>/<model>/1/model.py <region> ...``.

    Args:
        shared_memory_prefix: Prefix of that Triton (``TritonPlace``).
    """
    return [
        ModelProcess(Path(os.fsdecode(command[1])).parents[1].name, identity)
        for identity, command in processes_with(shared_memory_prefix)
        if command[0].endswith(TritonInstall.STUB.encode())
    ]


def kill_processes(shared_memory_prefix: str) -> list[ProcessIdentity]:
    """Kill a Triton and its model processes, and return them."""
    found = [identity for identity, _ in processes_with(shared_memory_prefix)]
    for identity in found:
        identity.kill()
    return found
