"""Compose the commands of a server: gateway and Triton."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.deploy.gpus import INSTEAD, check_gpus
from pipelines.deploy.ports import Endpoint
from pipelines.deploy.triton import nvidia_triton
from pipelines.deploy.triton.install import TritonInstall
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import loading_options
from pipelines.deploy.triton.nvidia_triton import NvidiaTriton
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError

# What the embedded runtime's Triton 2.51 prints on every machine without a GPU, and for every Unix socket.
_NO_GPU = re.compile(
    rb'E\d{4} \S+ \d+ server\.cc:241\] "CudaDriverHelper has not been initialized\."\n'
    rb'|E\d{4} \S+ \d+ ensemble_scheduler\.cc:1468\] "unable to create stream for [\w.-]+: '
    rb'CUDA driver version is insufficient for CUDA runtime version"\n'
    rb"|\[\x1b\[1;33mWARN\x1b\[0;39m\]  \x1b\[33mevhtp\.c:4050     \x1b\[39m\x1b\[94mNODELAY NOT SUPPORTED"
    rb"\x1b\[39m :: \x1b\[35m\(errno: Operation not supported\)\x1b\[39m\n"
)


@dataclass(frozen=True)
class ServerCommand:
    """A command that starts a part of a server.

    Attributes:
        arguments: Program and arguments.
        environment: All environment variables.
        noise: Whole lines of its output that say nothing, and are left out of the log; None for none.
    """

    arguments: list[str]
    environment: dict[str, str]
    noise: re.Pattern[bytes] | None = None


def check_installed(directory: Path) -> None:
    """Check that this machine has what the server of a run directory needs.

    Raises:
        ServerStartError: A requirement is missing.
    """
    launch = Launch.read(directory)
    if launch.runtime == "embedded":
        TritonInstall.find()
    else:
        _nvidia_triton(launch)


def gateway_command(directory: Path, endpoint: Endpoint) -> ServerCommand:
    """Return the command of the gateway, which starts and supervises Triton."""
    settings = json.dumps(asdict(endpoint), default=str)
    arguments = [sys.executable, "-m", "pipelines.triton.gateway", str(directory), settings]
    return ServerCommand(arguments, dict(os.environ))


def triton_command(directory: Path, place: TritonPlace, endpoint: Endpoint) -> ServerCommand:
    """Return the command of Triton.

    Raises:
        ServerStartError: A requirement is missing.
    """
    launch = Launch.read(directory)
    if launch.runtime == "embedded":
        return _embedded(directory, place, endpoint)
    arguments = nvidia_triton.triton_command(
        _nvidia_triton(launch), launch, directory, place, endpoint.exit_timeout_s
    )
    return ServerCommand(arguments, {**os.environ, **nvidia_triton.variables(), **place.variables()})


def _embedded(directory: Path, place: TritonPlace, endpoint: Endpoint) -> ServerCommand:
    install = TritonInstall.find()
    backends = install.prepare_backend(directory / "backends")
    repository = directory / "model_repository"
    arguments = [
        str(install.binary),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",  # it cannot be had without a GPU, which Triton would warn of
        *place.options(endpoint.exit_timeout_s),
        *loading_options(repository),
    ]
    environment = {**install.environment(directory / "libraries"), **place.variables()}
    return ServerCommand(arguments, environment, _NO_GPU)


def _nvidia_triton(launch: Launch) -> NvidiaTriton:
    """Return NVIDIA's Triton, after checking the GPUs.

    Raises:
        ServerStartError: A GPU is missing, or Triton with TensorRT-LLM's backend is not installed.
    """
    check_gpus(launch.gpu_device_ids)
    triton = NvidiaTriton.find()
    if triton is None:
        raise ServerStartError(
            f"there is no tritonserver with backends/tensorrtllm on PATH or in {nvidia_triton.ROOT}",
            f"run in {launch.container}, for which deploy/compose.gpu.yaml is made; or {INSTEAD}",
        )
    return triton
