"""Docker or Podman around NVIDIA's Triton, for a machine where it is not installed.

The checkout is mounted read-only at its own path, the run directory beside it writable: paths in the
rendered repository mean the same inside and outside.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.deploy.gpus import INSTEAD
from pipelines.deploy.launch import Launch
from pipelines.deploy.triton_install import REPOSITORY_ROOT
from pipelines.errors import ServerStartError

PYTHON = "/opt/draftproof/venv/bin/python"
"""Python inside the image, see ``pipelines/deploy/Dockerfile``."""

_DEPLOY = REPOSITORY_ROOT / "pipelines" / "deploy"
_QUICK_S = 30  # an answer that needs no work
_REMOVE_S = 60


@dataclass(frozen=True)
class Container:
    """A container of a server, running or not.

    Attributes:
        program: ``docker`` or ``podman``, as found on PATH.
        name: Of the container.
    """

    program: str
    name: str

    def remove(self) -> None:
        """End it at once if it still runs; a container that is gone is no error."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                [self.program, "rm", "--force", self.name],
                capture_output=True,
                timeout=_REMOVE_S,
                check=False,
            )


def find_program() -> str:
    """``docker``, else ``podman``, if it works and can hand GPUs to containers.

    Raises:
        ServerStartError: Neither is there, it does not answer, or NVIDIA's toolkit is missing.
    """
    found = [program for name in ("docker", "podman") if (program := shutil.which(name))]
    if not found:
        raise ServerStartError(
            "NVIDIA's Triton cannot be started",
            values="no tritonserver with the backend tensorrtllm, no docker, no podman",
            limit="it runs natively, inside NVIDIA's container or in one that is started here",
            remedy=f"install Docker or Podman with the NVIDIA Container Toolkit; or {INSTEAD}",
        )
    program = found[0]
    name = Path(program).name
    question = {"docker": ["version", "--format", "{{.Server.Version}}"], "podman": ["version"]}[name]
    code, said = ask([program, *question])
    if code != 0:
        raise ServerStartError(
            f"{name} does not work",
            values=said[:300] or f"exit code {code}",
            limit="containers must be startable by this user",
            remedy=f"start its service, or get the right to use it; or {INSTEAD}",
        )
    if shutil.which("nvidia-ctk") is None:
        prepare = {"docker": "nvidia-ctk runtime configure", "podman": "nvidia-ctk cdi generate"}[name]
        raise ServerStartError(
            f"{name} cannot hand GPUs to containers",
            values="nvidia-ctk is not on PATH",
            limit="NVIDIA Container Toolkit",
            remedy=f"install it and run '{prepare}' as its manual says; or {INSTEAD}",
        )
    return program


def ensure_image(program: str, launch: Launch, log: Path, report: Callable[[str], None]) -> None:
    """Build the image of the server unless it is there; its tag names its content.

    Args:
        program: As ``find_program`` gives it.
        launch: Names the image and what it is built on.
        log: Gets what the builder prints.
        report: Gets a line before a build, which may pull tens of gigabytes.

    Raises:
        ServerStartError: The build failed.
    """
    code, _ = ask([program, "image", "inspect", launch.image])
    if code == 0:
        return
    report(f"building image {launch.image} on {launch.container}; log {log}")
    build = [program, "build", "--file", str(_DEPLOY / "Dockerfile"), "--target", launch.image_target]
    build += ["--build-arg", f"BASE_IMAGE={launch.container}", "--tag", launch.image]
    with log.open("wb") as output:
        done = subprocess.run(
            [*build, str(REPOSITORY_ROOT / "requirements")],
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
            remedy=f"mend what the log names (network, disk, registry login); or {INSTEAD}",
        )


def run_command(
    program: str, name: str, launch: Launch, directory: Path, command: Sequence[str]
) -> list[str]:
    """What starts a container and stays until it ends, passing signals on to it.

    Args:
        program: As ``find_program`` gives it.
        name: Of the container.
        launch: Names the image.
        directory: Run directory; all that is writable besides /tmp.
        command: What runs inside.
    """
    return [
        *(program, "run", "--rm", "--init", "--name", name),
        *{"docker": _docker_options, "podman": _podman_options}[Path(program).name](),
        # As NVIDIA's README for the backend starts it: loopback of the host, room for NCCL and for tensors.
        *("--network", "host", "--shm-size", "2g"),
        *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        # A user that the image does not know: without a name and a home some packages fail.
        *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp", "--env", "USER=draftproof"),
        *("--mount", f"type=bind,source={REPOSITORY_ROOT},target={REPOSITORY_ROOT},readonly"),
        *("--mount", f"type=bind,source={directory},target={directory}"),
        *("--workdir", str(REPOSITORY_ROOT)),
        launch.image,
        *command,
    ]


# All GPUs: with a selection they would be numbered anew, and gpu_device_ids would mean others.
def _docker_options() -> list[str]:
    return ["--gpus", "all", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]


def _podman_options() -> list[str]:
    """As NVIDIA's manual of the Container Device Interface has it, SELinux included.

    Without root no limit can be raised, and the user would be another inside.
    """
    gpus = ["--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"]
    if os.getuid() == 0:
        return [*gpus, "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
    return [*gpus, "--ulimit", "host", "--userns", "keep-id"]


def ask(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and text of a quick question; 127 if it cannot be asked."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUICK_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, " ".join((done.stdout + done.stderr).split())
