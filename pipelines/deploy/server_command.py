"""The command that is a recipe's server: the embedded Triton, NVIDIA's, or a container around NVIDIA's."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy import containers, nvidia_triton
from pipelines.deploy.containers import Container
from pipelines.deploy.endpoint import Endpoint
from pipelines.deploy.gpus import INSTEAD, check_gpus
from pipelines.deploy.launch import Launch
from pipelines.deploy.models import loading_options
from pipelines.deploy.mpi_hosts import leader_worker_set_hosts, wait_for
from pipelines.deploy.nvidia_triton import NvidiaTriton
from pipelines.deploy.triton_install import TritonInstall
from pipelines.errors import ServerStartError


@dataclass(frozen=True)
class ServerCommand:
    """What to start.

    Attributes:
        arguments: Program and arguments.
        environment: All its variables.
        container: The container that it runs in, if it does.
    """

    arguments: list[str]
    environment: dict[str, str]
    container: Container | None = None


def background_command(
    directory: Path, endpoint: Endpoint, report: Callable[[str], None] = print
) -> ServerCommand:
    """The server of a machine that people work on: in a container where Triton is not installed.

    Args:
        directory: ``.run/<recipe>`` with the rendered repository.
        endpoint: Where the server listens.
        report: Gets a line about what takes long.

    Raises:
        ServerStartError: Something that it needs is missing.
    """
    launch = Launch.read(directory)
    if launch.runtime == "embedded":
        return _embedded(directory, endpoint)
    if launch.num_nodes > 1:
        raise ServerStartError(
            "the ranks of this recipe are spread over several machines",
            values=f"num_nodes={launch.num_nodes}",
            limit="'make serve' starts one machine",
            remedy="apply what 'make deployment' renders, or set tensorrt_llm.num_nodes: 1",
        )
    check_gpus(launch.gpu_device_ids)
    if NvidiaTriton.find() is not None:
        return _native(launch, directory, endpoint)
    program = containers.find_program()
    containers.ensure_image(program, launch, directory / "image.log", report)
    container = Container(program, f"draftproof-{directory.name}-{endpoint.ports.http}")
    container.remove()  # left behind by a server that was killed
    inside = [containers.PYTHON, "-m", "pipelines.deploy", "run", str(directory), *endpoint.options()]
    arguments = containers.run_command(program, container.name, launch, directory, inside)
    return ServerCommand(arguments, dict(os.environ), container)


def foreground_command(directory: Path, endpoint: Endpoint) -> ServerCommand:
    """The server inside a container: native, on the leader of several machines with all their ranks.

    Raises:
        ServerStartError: Something that it needs is missing, or another machine does not come up.
    """
    launch = Launch.read(directory)
    if launch.runtime == "embedded":
        return _embedded(directory, endpoint)
    check_gpus(launch.gpu_device_ids)
    return _native(launch, directory, endpoint)


def rank_command(directory: Path, endpoint: Endpoint, rank: int) -> ServerCommand:
    """The process of one rank, which ``mpirun`` has started.

    Raises:
        ServerStartError: Triton with the backend is not installed here.
    """
    launch = Launch.read(directory)
    triton = NvidiaTriton.find()
    if triton is None:
        raise _no_backend()
    arguments = nvidia_triton.rank_command(triton, launch, directory, endpoint, rank)
    return ServerCommand(arguments, nvidia_triton.environment(launch, endpoint))


def _embedded(directory: Path, endpoint: Endpoint) -> ServerCommand:
    install = TritonInstall.find()
    backends = install.lay_out_backend(directory / "backends")
    repository = directory / "model_repository"
    arguments = [
        str(install.binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--allow-gpu-metrics=false",
        *endpoint.triton_options(),
        *loading_options(repository),
    ]
    environment = {**install.environment(directory / "libraries"), **endpoint.variables()}
    return ServerCommand(arguments, environment)


def _native(launch: Launch, directory: Path, endpoint: Endpoint) -> ServerCommand:
    if NvidiaTriton.find() is None:
        raise _no_backend()
    hosts = None
    if launch.num_nodes > 1:
        hosts = leader_worker_set_hosts(launch, os.environ)
        wait_for(hosts)
    arguments = nvidia_triton.mpi_command(launch, directory, endpoint, hosts)
    return ServerCommand(arguments, nvidia_triton.environment(launch, endpoint))


def _no_backend() -> ServerStartError:
    return ServerStartError(
        "Triton with TensorRT-LLM's C++ backend is not installed here",
        values=f"no tritonserver with backends/tensorrtllm on PATH or in {nvidia_triton.ROOT}",
        limit="NVIDIA's container of the recipe, tensorrt_llm.container",
        remedy=f"run inside it; or {INSTEAD}",
    )
