"""Run NVIDIA's Triton in Docker or Podman, on a machine where it is not installed.

The checkout is mounted read-only and the run directory writable, both at the paths that they have outside,
because the rendered repository contains absolute paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.doctor.gpus import INSTEAD
from pipelines.deploy.triton.install import REPOSITORY_ROOT
from pipelines.deploy.triton.launch import Launch
from pipelines.errors import ServerStartError

PYTHON = "/opt/draftproof/venv/bin/python"
"""Path of Python in the image, as in ``pipelines/deploy/Dockerfile``."""

_DEPLOY = REPOSITORY_ROOT / "pipelines" / "deploy"
_QUERY_TIMEOUT_S = 30
_REMOVE_TIMEOUT_S = 60


@dataclass(frozen=True)
class Container:
    """A container of a server, running or not.

    Attributes:
        program: Path of ``docker`` or ``podman``.
        name: Name of the container.
    """

    program: str
    name: str

    def remove(self) -> None:
        """Stop it immediately and remove it; do nothing if it no longer exists."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [self.program, "rm", "--force", self.name],
                capture_output=True,
                timeout=_REMOVE_TIMEOUT_S,
                check=False,
            )


def find_program() -> str:
    """Return ``docker`` or else ``podman``, after checking that it works and can give containers GPUs.

    Raises:
        ServerStartError: Neither is installed, it does not respond, or NVIDIA's toolkit is missing.
    """
    found = [program for name in ("docker", "podman") if (program := shutil.which(name))]
    if not found:
        raise ServerStartError(
            "NVIDIA's Triton cannot be started",
            values="no tritonserver with the backend tensorrtllm, no docker, no podman",
            limit="needs a native installation, NVIDIA's container, or Docker or Podman to start one",
            remedy=f"install Docker or Podman with the NVIDIA Container Toolkit; or {INSTEAD}",
        )
    program = found[0]
    name = Path(program).name
    question = {"docker": ["version", "--format", "{{.Server.Version}}"], "podman": ["version"]}[name]
    code, said = query([program, *question])
    if code != 0:
        raise ServerStartError(
            f"{name} does not work",
            values=said[:300] or f"exit code {code}",
            limit="this user must be able to start containers",
            remedy=f"start its service, or give this user access to it; or {INSTEAD}",
        )
    if shutil.which("nvidia-ctk") is None:
        prepare = {"docker": "nvidia-ctk runtime configure", "podman": "nvidia-ctk cdi generate"}[name]
        raise ServerStartError(
            f"{name} cannot give containers access to GPUs",
            values="nvidia-ctk is not on PATH",
            limit="needs the NVIDIA Container Toolkit",
            remedy=f"install it and run '{prepare}' as described in its manual; or {INSTEAD}",
        )
    return program


def ensure_image(program: str, launch: Launch, log: Path, report: Callable[[str], None]) -> None:
    """Build the server's image unless it exists; its tag is a hash of its content.

    Args:
        program: Return value of ``find_program``.
        launch: Names the image and its base image.
        log: File for the output of the build.
        report: Called with a line before a build, which may download tens of gigabytes.

    Raises:
        ServerStartError: The build failed.
    """
    code, _ = query([program, "image", "inspect", launch.image])
    if code == 0:
        return
    report(f"building image {launch.image} on {launch.container}; log {log}")
    build = [program, "build", "--file", str(_DEPLOY / "Dockerfile"), "--target", "environment"]
    build += ["--build-arg", f"BASE_IMAGE={launch.container}", "--tag", launch.image]
    with log.open("wb") as output:
        done = subprocess.run(
            [*build, str(REPOSITORY_ROOT)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise ServerStartError(
            "the image of the server could not be built",
            values=f"exit code {done.returncode}, log {log}:\n" + "\n".join(lines[-12:]) + "\n",
            limit=f"{launch.image} from {launch.container}",
            remedy=f"fix the error in the log (network, disk, registry login); or {INSTEAD}",
        )


def run_command(
    program: str, name: str, launch: Launch, directory: Path, command: Sequence[str]
) -> list[str]:
    """Return the command that runs a container in the foreground and forwards signals to it.

    Args:
        program: Return value of ``find_program``.
        name: Name of the container.
        launch: Names the image.
        directory: Run directory; apart from /tmp, nothing else is writable.
        command: Command to run in the container.
    """
    return [
        *(program, "run", "--rm", "--init", "--name", name),
        *{"docker": _docker_options, "podman": _podman_options}[Path(program).name](),
        # As in NVIDIA's README for the backend: the host's network, and shared memory for NCCL and tensors.
        *("--network", "host", "--shm-size", "2g"),
        *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        # The image does not know this user; some packages fail without a user name and a home.
        *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp", "--env", "USER=draftproof"),
        *("--mount", f"type=bind,source={REPOSITORY_ROOT},target={REPOSITORY_ROOT},readonly"),
        *("--mount", f"type=bind,source={directory},target={directory}"),
        *_package_mount(launch),
        *("--workdir", str(REPOSITORY_ROOT)),
        launch.image,
        *command,
    ]


def _package_mount(launch: Launch) -> list[str]:
    if launch.package is None:
        return []
    place = launch.package.directory
    return ["--mount", f"type=bind,source={place},target={place},readonly"]


# All GPUs, because a selection would be renumbered, and gpu_device_ids would refer to other GPUs.
def _docker_options() -> list[str]:
    return ["--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]


def _podman_options() -> list[str]:
    """Return the options in NVIDIA's manual of the Container Device Interface, including those for SELinux.

    Rootless Podman cannot raise limits, and needs ``keep-id`` for the user to be the same in the container.
    """
    gpus = ["--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"]
    if os.getuid() == 0:
        return [*gpus, "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    return [*gpus, "--ulimit", "host", "--userns", "keep-id"]


def query(command: Sequence[str]) -> tuple[int, str]:
    """Run a short command and return its exit code and output; 127 if it cannot be run."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, " ".join((done.stdout + done.stderr).split())
