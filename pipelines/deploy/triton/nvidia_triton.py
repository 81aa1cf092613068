"""Find NVIDIA's Triton with TensorRT-LLM's C++ backend, and start its ranks.

Flags and variables are those of ``triton_backend/scripts/launch_triton_server.py`` in TensorRT-LLM 1.2. That
script has a different command for each rank; here, ``mpirun`` starts the same command for all ranks, which
then choose their options (``rank_command``). This module has never been run on a GPU.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.doctor.gpus import INSTEAD
from pipelines.deploy.endpoint import Endpoint
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import loading_options
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError

ROOT = Path("/opt/tritonserver")
"""Its directory in NVIDIA's containers."""

ENGINE_MODELS = ("draft", "target")
RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"  # set by Open MPI in every process that it starts
SSH_DIRECTORY = Path("/etc/draftproof-ssh")
SSH_PORT = 2222
# Variables that SSH does not pass on, and keys, which must not appear on a command line.
_FORWARDED_VARIABLES = (
    *("LD_LIBRARY_PATH", "PATH", "PYTHONPATH"),
    *("DRAFTPROOF_KEY", "DRAFTPROOF_TRITON_KEY", "DRAFTPROOF_SHARED_MEMORY"),
    "DRAFTPROOF_GRPC_ADDRESS",
)


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


def mpi_command(
    launch: Launch, directory: Path, endpoint: Endpoint, hosts: Mapping[str, int] | None = None
) -> list[str]:
    """Return the command that starts all ranks and runs until they end.

    Args:
        launch: Number of ranks.
        directory: ``.run/<recipe>`` with the rendered repository, at the same path on every machine.
        endpoint: Address and ports of rank 0.
        hosts: Machine -> number of ranks, in the order of the ranks; None for this machine alone.

    Raises:
        ServerStartError: ``mpirun`` is not installed.
    """
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise ServerStartError(
            "mpirun was not found",
            values=f"not on PATH={os.environ.get('PATH', '')}",
            limit="Open MPI starts TensorRT-LLM's ranks",
            remedy=f"use NVIDIA's container, which includes it; or {INSTEAD}",
        )
    # With its full path, Open MPI also finds its own files on the other machines.
    command = [mpirun, "-n", str(launch.world_size), "--wdir", str(REPOSITORY_ROOT)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    # The time until SIGTERM reaches the ranks, and again until SIGKILL. The default of 1 s would abort the
    # requests in flight (open-mpi/ompi#7033; from reading the source of 4.1).
    command += ["--mca", "odls_base_sigkill_timeout", str(endpoint.exit_timeout_s)]
    for name in _FORWARDED_VARIABLES:
        command += ["-x", name]
    if hosts is not None:
        ssh = f"-p {SSH_PORT} -i {SSH_DIRECTORY}/id_ed25519 -o UserKnownHostsFile={SSH_DIRECTORY}/known_hosts"
        command += ["--mca", "plm_rsh_args", ssh]
        command += ["--map-by", "slot"]
        command += ["--host", ",".join(f"{host}:{ranks}" for host, ranks in hosts.items())]
    return [*command, sys.executable, "-m", "pipelines.deploy", "rank", str(directory), *endpoint.options()]


def orchestrator_variables(launch: Launch) -> dict[str, str]:
    """Return the variables that set the backend's mode (``model_instance_state.cc``)."""
    return {
        "TRTLLM_ORCHESTRATOR": str(int(launch.mode == "orchestrator")),
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": str(int(launch.spawns_workers)),
    }


def environment(launch: Launch) -> dict[str, str]:
    """Return the environment of ``mpirun`` and the ranks; Python models use this Python's packages."""
    return {
        **os.environ,
        **orchestrator_variables(launch),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(REPOSITORY_ROOT),
    }


def rank_command(
    triton: NvidiaTriton,
    launch: Launch,
    directory: Path,
    place: TritonPlace,
    exit_timeout_s: int,
    rank: int,
) -> list[str]:
    """Return the command of one rank: rank 0 serves requests, the others run parts of the engines.

    Ranks above 0 never finish loading and therefore do not serve; their endpoints are switched off.
    """
    repository = directory / "model_repository"
    command = [
        str(triton.binary),
        f"--model-repository={repository}",
        f"--backend-directory={triton.backends}",
        *place.options(exit_timeout_s, rank),
    ]
    if launch.spawns_workers:
        # As in NVIDIA's script: this memory is for the spawned workers, not for the server.
        command += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        command += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in launch.gpu_device_ids]
    if rank > 0:
        command += ["--allow-grpc=false", "--allow-metrics=false"]
        command += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in ENGINE_MODELS)]
    else:
        command += loading_options(repository)
    return command
