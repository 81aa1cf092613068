"""Compose the commands of a server: gateway and Triton."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.gpus import INSTEAD, check_gpus
from pipelines.deploy.ports import Endpoint
from pipelines.deploy.triton import nvidia_triton
from pipelines.deploy.triton.install import TritonInstall
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import loading_options
from pipelines.deploy.triton.nvidia_triton import NvidiaTriton, leader_worker_set_hosts, wait_for
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError


@dataclass(frozen=True)
class ServerCommand:
    """A command that starts a part of a server.

    Attributes:
        arguments: Program and arguments.
        environment: All environment variables.
    """

    arguments: list[str]
    environment: dict[str, str]


def background_command(directory: Path, endpoint: Endpoint) -> ServerCommand:
    """Return the command of a server in the background, after checking what it needs.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        endpoint: Address and ports of the server.

    Raises:
        ServerStartError: A requirement is missing.
    """
    launch = Launch.read(directory)
    if launch.runtime == "embedded":
        TritonInstall.find()
        return gateway_command(directory, endpoint)
    if launch.num_nodes > 1:
        raise ServerStartError(
            "this recipe needs several machines",
            values=f"num_nodes={launch.num_nodes}",
            limit="'draftproof serve' starts a server on one machine",
            remedy="use deploy/several_machines, or set tensorrt_llm.num_nodes: 1",
        )
    check_gpus(launch.gpu_device_ids)
    if NvidiaTriton.find() is None:
        raise _no_backend(launch)
    return gateway_command(directory, endpoint)


def gateway_command(directory: Path, endpoint: Endpoint) -> ServerCommand:
    """Return the command of the gateway, which starts and supervises Triton."""
    arguments = [sys.executable, "-m", "pipelines.triton.gateway", str(directory), *endpoint.options()]
    return ServerCommand(arguments, dict(os.environ))


def triton_command(directory: Path, place: TritonPlace, endpoint: Endpoint) -> ServerCommand:
    """Return the command of Triton; on the leader of several machines, it starts all ranks.

    Raises:
        ServerStartError: A requirement is missing, or another machine cannot be reached.
    """
    launch = Launch.read(directory)
    if launch.runtime == "embedded":
        return _embedded(directory, place, endpoint)
    check_gpus(launch.gpu_device_ids)
    if NvidiaTriton.find() is None:
        raise _no_backend(launch)
    hosts = None
    if launch.num_nodes > 1:
        hosts = leader_worker_set_hosts(launch, os.environ)
        wait_for(hosts)
    arguments = nvidia_triton.mpi_command(launch, directory, endpoint, hosts)
    return ServerCommand(arguments, {**nvidia_triton.environment(launch), **place.variables()})


def rank_command(directory: Path, endpoint: Endpoint, rank: int) -> ServerCommand:
    """Return the command of one rank, for a process that ``mpirun`` has started.

    Raises:
        ServerStartError: Triton with TensorRT-LLM's backend is not installed.
    """
    launch = Launch.read(directory)
    triton = NvidiaTriton.find()
    if triton is None:
        raise _no_backend(launch)
    place = TritonPlace.from_environment(directory)
    arguments = nvidia_triton.rank_command(triton, launch, directory, place, endpoint.exit_timeout_s, rank)
    return ServerCommand(arguments, nvidia_triton.environment(launch))


def _embedded(directory: Path, place: TritonPlace, endpoint: Endpoint) -> ServerCommand:
    install = TritonInstall.find()
    backends = install.prepare_backend(directory / "backends")
    repository = directory / "model_repository"
    arguments = [
        str(install.binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--allow-gpu-metrics=false",
        *place.options(endpoint.exit_timeout_s),
        *loading_options(repository),
    ]
    return ServerCommand(arguments, {**install.environment(directory / "libraries"), **place.variables()})


def _no_backend(launch: Launch) -> ServerStartError:
    return ServerStartError(
        "Triton with TensorRT-LLM's C++ backend is not installed",
        values=f"no tritonserver with backends/tensorrtllm on PATH or in {nvidia_triton.ROOT}",
        limit=f"must run in {launch.container}",
        remedy=f"use that container, for which deploy/compose.gpu.yaml is made; or {INSTEAD}",
    )
