"""NVIDIA's Triton with the C++ backend of TensorRT-LLM: where it lies and how its ranks are started.

Follows ``triton_backend/scripts/launch_triton_server.py`` of TensorRT-LLM 1.2 for flags and variables; the
name of each is its. One thing is done otherwise: that script writes one command line per rank, here
``mpirun`` starts the same command everywhere and the rank decides (``rank_command``). Nothing here was
run on a GPU yet.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.endpoint import Endpoint
from pipelines.deploy.gpus import INSTEAD
from pipelines.deploy.launch import Launch
from pipelines.deploy.models import loading_options
from pipelines.deploy.triton_install import REPOSITORY_ROOT
from pipelines.errors import ServerStartError

ROOT = Path("/opt/tritonserver")
"""Where NVIDIA's containers hold it."""

ENGINE_MODELS = ("draft", "target")
RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"  # Open MPI's, in every process that it starts
SSH_DIRECTORY = Path("/etc/draftproof-ssh")
SSH_PORT = 2222
_PASSED_ON = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")  # what a login over SSH does not bring along


@dataclass(frozen=True)
class NvidiaTriton:
    """An installation.

    Attributes:
        binary: ``tritonserver``.
        backends: Folder of the backends, with ``tensorrtllm`` among them.
    """

    binary: Path
    backends: Path

    @classmethod
    def find(cls) -> NvidiaTriton | None:
        """The ``tritonserver`` of PATH, else of NVIDIA's containers; None if it cannot run the engines."""
        on_path = shutil.which("tritonserver")
        binary = Path(on_path).resolve() if on_path else ROOT / "bin" / "tritonserver"
        backends = binary.parents[1] / "backends"
        if os.access(binary, os.X_OK) and (backends / "tensorrtllm").is_dir():
            return cls(binary, backends)
        return None


def mpi_command(
    launch: Launch, directory: Path, endpoint: Endpoint, hosts: Mapping[str, int] | None = None
) -> list[str]:
    """What starts all ranks; the process lives as long as they do.

    Args:
        launch: How many.
        directory: ``.run/<recipe>`` with the rendered repository, at the same path on every machine.
        endpoint: Where rank 0 listens.
        hosts: Machine -> ranks there, in the order of the ranks; None for this machine alone.

    Raises:
        ServerStartError: There is no ``mpirun``.
    """
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise ServerStartError(
            "mpirun is missing",
            values=f"not on PATH={os.environ.get('PATH', '')}",
            limit="TensorRT-LLM's ranks are started by Open MPI",
            remedy=f"run inside NVIDIA's container, which has it; or {INSTEAD}",
        )
    # Named in full, as Open MPI then finds its own parts on the other machines as well.
    command = [mpirun, "-n", str(launch.world_size), "--wdir", str(REPOSITORY_ROOT)]
    if os.geteuid() == 0:
        command.append("--allow-run-as-root")
    # Waited before SIGTERM reaches the ranks and once more before SIGKILL; 1 s by default, which
    # would cut off the requests in flight (open-mpi/ompi#7033; read for 4.1).
    command += ["--mca", "odls_base_sigkill_timeout", str(endpoint.exit_timeout_s)]
    for name in _PASSED_ON:
        command += ["-x", name]
    if hosts is not None:
        ssh = f"-p {SSH_PORT} -i {SSH_DIRECTORY}/id_ed25519 -o UserKnownHostsFile={SSH_DIRECTORY}/known_hosts"
        command += ["--mca", "plm_rsh_args", ssh]
        command += ["--map-by", "slot"]
        command += ["--host", ",".join(f"{host}:{ranks}" for host, ranks in hosts.items())]
    return [*command, sys.executable, "-m", "pipelines.deploy", "rank", str(directory), *endpoint.options()]


def orchestrator_variables(launch: Launch) -> dict[str, str]:
    """Environment by which the backend learns its mode (``model_instance_state.cc``)."""
    return {
        "TRTLLM_ORCHESTRATOR": str(int(launch.mode == "orchestrator")),
        "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": str(int(launch.spawns_workers)),
    }


def environment(launch: Launch, endpoint: Endpoint) -> dict[str, str]:
    """Variables of ``mpirun`` and the ranks; Triton's Python models take their packages from this Python."""
    return {
        **os.environ,
        **orchestrator_variables(launch),
        **endpoint.variables(),
        "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", ""),
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(REPOSITORY_ROOT),
    }


def rank_command(
    triton: NvidiaTriton, launch: Launch, directory: Path, endpoint: Endpoint, rank: int
) -> list[str]:
    """The server of one rank: rank 0 answers requests, the others hold parts of the engines.

    A rank above 0 never finishes loading, so it would not listen anyway; it is told not to.
    """
    repository = directory / "model_repository"
    command = [
        str(triton.binary),
        f"--model-repository={repository}",
        f"--backend-directory={triton.backends}",
        *endpoint.triton_options(rank),
    ]
    if launch.spawns_workers:
        # As the script above does: memory that the spawned workers need, not the server.
        command += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        command += [f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in launch.gpu_device_ids]
    if rank > 0:
        command += ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
        command += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in ENGINE_MODELS)]
    else:
        command += loading_options(repository)
    return command
