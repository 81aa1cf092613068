"""Find and run ``trtllm-build``, installed on this machine or in the recipe's container."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from build.recipe import Recipe
from build.tensorrt_llm.versions import Installation, find_installation, release
from pipelines.errors import EngineBuildError

# Bytes at the end of a log that an error message quotes.
_TAIL = 2000


@dataclass(frozen=True)
class Builder:
    """A way to run ``trtllm-build``.

    Attributes:
        runtime: ``docker`` or ``podman``; None to run the installed program.
        image: The container's image, or None.
        note: Description for the log.
    """

    runtime: str | None
    image: str | None
    note: str

    def wrap(self, command: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        """Return the command to start on this machine.

        Directories are mounted at the same path in the container, so that the inner command does not change.

        Args:
            command: ``trtllm-build`` and its arguments.
            readable: Directories that it may read.
            writable: Directories that it may also write.
        """
        if self.runtime is None or self.image is None:
            return list(command)
        gpus = ["--gpus", "all"] if self.runtime == "docker" else ["--device", "nvidia.com/gpu=all"]
        # Rootless podman maps the caller to root; with keep-id, files belong to the caller.
        user = [] if self.runtime == "docker" else ["--userns", "keep-id"]
        user += ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]
        # The image has no account of this number. torch asks getpass.getuser() for the folder of its caches,
        # which fails there unless one of these variables names the user.
        user += ["--env", "USER=draftproof", "--env", "LOGNAME=draftproof"]
        # Settings that NVIDIA's images recommend at start; torch and NCCL use shared memory.
        memory = ["--ipc", "host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
        volumes: list[str] = []
        for path in readable:
            volumes += ["--volume", f"{path}:{path}:ro"]
        for path in writable:
            volumes += ["--volume", f"{path}:{path}"]
        return [self.runtime, "run", "--rm", *gpus, *memory, *user, *volumes, self.image, *command]


def find_builder(recipe: Recipe) -> Builder:
    """Return the installed ``trtllm-build`` if it has the recipe's version, else the recipe's container.

    Raises:
        EngineBuildError: Neither can be used.
    """
    section = recipe.tensorrt_llm
    found = find_installation()
    if found is not None and found.builder is not None and found.version.partition("+")[0] == section.version:
        return Builder(None, None, f"{found.builder}, TensorRT-LLM {found.version}")
    runtime = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if runtime is not None:
        return Builder(runtime, section.container, f"{runtime}, image {section.container}")
    raise EngineBuildError(
        "no trtllm-build of the recipe's version was found",
        values=f"{_describe(found)}; neither docker nor podman on PATH",
        limit=f"TensorRT-LLM {section.version}, installed or in {section.container}",
        remedy=_remedy(recipe, found),
    )


def _describe(found: Installation | None) -> str:
    if found is None:
        return "no TensorRT-LLM on PATH"
    if found.builder is None:
        return f"TensorRT-LLM {found.version} without trtllm-build"
    return f"trtllm-build of TensorRT-LLM {found.version}"


def _remedy(recipe: Recipe, found: Installation | None) -> str:
    install = f"install docker or podman, or run inside {recipe.tensorrt_llm.container}"
    if found is not None and found.builder is None and release(found.version) >= (1, 3):
        return (
            "trtllm-build was removed from TensorRT-LLM 1.3 in June and July 2026: to build engines, "
            f"{install}; for the installed version run make llm-api RECIPE={recipe.argument}"
        )
    return f"{install}; without a GPU, use RUNTIME=embedded"


def run_logged(command: Sequence[str], log: Path, lock: TextIO) -> int:
    """Run a command and write its output to a file.

    Args:
        command: The command and its arguments.
        log: File for the output; an existing file is overwritten.
        lock: Inherited by the command, so that the next build waits for it even if this process is killed.

    Returns:
        Its exit code, or the negative number of the signal that ended it.

    Raises:
        EngineBuildError: The command could not be started or the log could not be written.
    """
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lock.fileno(),),
            )
            try:
                return process.wait()
            finally:
                # Still running after Ctrl-C; docker and trtllm-build end on SIGTERM.
                if process.poll() is None:
                    process.terminate()
                    process.wait()
    except OSError as error:
        raise EngineBuildError(
            f"{command[0]} could not be started",
            values=str(error),
            limit="needs an executable program and a writable log",
            remedy="check the installation and the disk",
        ) from None


def tail(log: Path) -> str:
    """Return the last lines of a log, joined into one line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        text = file.read().decode("utf-8", errors="replace")
    return " | ".join(line.strip() for line in text.splitlines()[-12:] if line.strip())
