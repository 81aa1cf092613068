"""Find NVIDIA's Triton with TensorRT-LLM's C++ backend, and start its ranks.

Flags and variables are those of ``triton_backend/scripts/launch_triton_server.py`` in TensorRT-LLM 1.2. That
script has a different command for each rank; here, ``mpirun`` starts the same command for all ranks, which
then choose their options (``rank_command``). This module has never been run on a GPU.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.gpus import INSTEAD
from pipelines.deploy.ports import Endpoint
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
WORKER_TIMEOUT_S = 600.0  # nodes may have to pull an image of tens of gigabytes
_POLL_S = 1.0
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


def leader_worker_set_hosts(launch: Launch, environment: Mapping[str, str]) -> dict[str, int]:
    """Return machine -> number of ranks, the leader first; it also runs the orchestrator and the draft's.

    The controller of LeaderWorkerSets sets LWS_LEADER_ADDRESS (``<set>-<group>.<service>.<namespace>``) and
    LWS_GROUP_SIZE in every container. The name of worker i's pod is the leader's with ``-<i>`` appended, in
    the same service
    (kubernetes-sigs/lws v0.9.0: ``pkg/utils/pod/pod_utils.go``,
    ``site/content/en/docs/reference/labels-annotations-and-environment-variables.md``).

    Raises:
        ServerStartError: This is not the leader of a LeaderWorkerSet of that size.
    """
    address = environment.get("LWS_LEADER_ADDRESS", "")
    size, index = environment.get("LWS_GROUP_SIZE", ""), environment.get("LWS_WORKER_INDEX", "0")
    if not address or size != str(launch.num_nodes) or index != "0":
        raise ServerStartError(
            "the machines of the other ranks are unknown",
            values=f"LWS_LEADER_ADDRESS={address!r}, LWS_GROUP_SIZE={size!r}, LWS_WORKER_INDEX={index!r}",
            limit=f"must run in the leader of a LeaderWorkerSet of {launch.num_nodes} pods",
            remedy="use deploy/several_machines, or set tensorrt_llm.num_nodes: 1",
        )
    leader, _, domain = address.partition(".")
    # The leader's name without its domain is its host name, by which mpirun recognizes it and avoids SSH.
    names = [leader, *(f"{leader}-{i}.{domain}" for i in range(1, launch.num_nodes))]
    first = launch.world_size - launch.ranks_per_node * (launch.num_nodes - 1)
    return {name: launch.ranks_per_node if i else first for i, name in enumerate(names)}


def wait_for(
    hosts: Mapping[str, int],
    port: int = SSH_PORT,
    timeout_s: float = WORKER_TIMEOUT_S,
    poll_s: float = _POLL_S,
) -> None:
    """Wait until the SSH server of every machine but the first, which is this one, can be reached.

    Args:
        hosts: Return value of ``leader_worker_set_hosts``.
        port: Port of the SSH servers.
        timeout_s: Time limit for all machines together.
        poll_s: Time between two attempts.

    Raises:
        ServerStartError: A machine cannot be reached in time.
    """
    deadline_s = time.monotonic() + timeout_s
    for host in list(hosts)[1:]:
        while True:
            try:
                socket.create_connection((host, port), timeout=5.0).close()
                break
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise ServerStartError(
                        "a machine of the server cannot be reached",
                        values=f"{host}, port {port}: {error}",
                        limit=f"{timeout_s:.0f} s",
                        remedy="inspect its pod with kubectl describe pod and kubectl logs",
                    ) from None
            time.sleep(poll_s)
