"""Find NVIDIA's Triton with TensorRT-LLM's C++ backend, and start it as the orchestrator of its engines.

``mpirun`` starts the server alone. The backend in it then spawns a worker for each rank of an engine, on the
same machine, and can load and unload engines while it runs. Flags and variables are those of
``triton_backend/scripts/launch_triton_server.py`` in TensorRT-LLM 1.2. This module has never been run on a
GPU.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.gpus import INSTEAD
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import loading_options
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError
from pipelines.places import CODE
from pipelines.process import processes_with

ROOT = Path("/opt/tritonserver")
"""Its directory in NVIDIA's containers."""


@dataclass(frozen=True)
class NvidiaTriton:
    """An installation of NVIDIA's Triton.

    Attributes:
        binary: The program ``tritonserver``.
        backends: Folder of the backends, including ``tensorrtllm``.
    """

    binary: Path
    backends: Path

    @classmethod
    def find(cls) -> NvidiaTriton | None:
        """Find ``tritonserver`` on PATH or at NVIDIA's path; None if it has no backend for the engines."""
        on_path = shutil.which("tritonserver")
        binary = Path(on_path).resolve() if on_path else ROOT / "bin" / "tritonserver"
        backends = binary.parents[1] / "backends"
        if os.access(binary, os.X_OK) and (backends / "tensorrtllm").is_dir():
            return cls(binary, backends)
        return None


def triton_command(
    triton: NvidiaTriton, launch: Launch, directory: Path, place: TritonPlace, exit_timeout_s: int
) -> list[str]:
    """Return the command that starts the server and runs until it ends.

    Args:
        triton: The installation.
        launch: The GPUs of the engines.
        directory: ``.run/<recipe>`` with the rendered repository.
        place: Sockets and keys of the server.
        exit_timeout_s: How long it waits for requests in flight at shutdown.

    Raises:
        ServerStartError: ``mpirun`` is not installed.
    """
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise ServerStartError(
            f"mpirun, which starts TensorRT-LLM's ranks, is not on PATH={os.environ.get('PATH', '')}",
            f"use NVIDIA's container, which includes it; or {INSTEAD}",
        )
    # By default Open MPI binds a single rank to one core, and with it the server and all its models, and has
    # a slot for each core. The backend spawns a rank for each GPU of each engine, which may be more.
    command = [mpirun, "-n", "1", "--bind-to", "none", "--oversubscribe", "--wdir", str(CODE)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    # The time until SIGTERM reaches the server, and again until SIGKILL. The default of 1 s would abort the
    # requests in flight (open-mpi/ompi#7033; from reading the source of 4.1).
    command += ["--mca", "odls_base_sigkill_timeout", str(exit_timeout_s)]
    for name in (*variables(), *place.variables()):
        command += ["-x", name]
    repository = directory / "model_repository"
    return [
        *command,
        str(triton.binary),
        f"--model-repository={repository}",
        f"--backend-directory={triton.backends}",
        *place.options(exit_timeout_s),
        # As in NVIDIA's script: this memory is for the spawned workers, not for the server.
        "--pinned-memory-pool-byte-size=0",
        "--enable-peer-access=false",
        *(f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in launch.gpu_device_ids),
        *loading_options(repository),
    ]


def variables() -> dict[str, str]:
    """Return what the server needs in its environment; Python models use this Python's packages."""
    return {
        "TRTLLM_ORCHESTRATOR": "1",  # the backend's mode (model_instance_state.cc)
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1",
        # Nothing is sent to other servers, but the backend always prepares for it: twice 512 MB for each
        # engine on each GPU, which the memory plan does not have. The unit is required (envUtils.cpp).
        "TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE": "0B",
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(CODE),
    }


def process_to_end(program: str, started: int, place: TritonPlace) -> int:
    """Return the process that a signal to end belongs to: the server, also if ``mpirun`` has started it.

    ``mpirun`` would pass the signal to the ranks of the engines too, which end at once. The server then waits
    for them until it is killed.

    Args:
        program: The program that we have started.
        started: Id of its process.
        place: Sockets and shared memory of the server.
    """
    if Path(program).name != "mpirun":
        return started
    found = dict(processes_with(place.shared_memory_prefix))
    # Between fork and exec, a child has its parent's command line: mpirun's, or the server's.
    of_mpirun = [words for each, words in found.items() if each.pid == started]
    servers = (each.pid for each, words in found.items() if each.parent == started and words not in of_mpirun)
    return min(servers, default=started)
