"""Where ``trtllm-build`` runs: installed on this machine, or in the recipe's container."""

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

# Bytes of a log's end that an error quotes.
_TAIL = 2000


@dataclass(frozen=True)
class Builder:
    """A ``trtllm-build`` that can be run.

    Attributes:
        runtime: ``docker`` or ``podman``, or None for the one that is installed.
        image: The container's image, or None.
        note: Why this one was chosen, for the log.
    """

    runtime: str | None
    image: str | None
    note: str

    def wrap(self, command: Sequence[str], readable: Sequence[Path], writable: Sequence[Path]) -> list[str]:
        """The command as it is started on this machine.

        In a container every directory has the path that it has outside, so the command is the same.

        Args:
            command: ``trtllm-build`` and its arguments.
            readable: Directories that it may read.
            writable: Directories that it may also write.
        """
        if self.runtime is None or self.image is None:
            return list(command)
        gpus = ["--gpus", "all"] if self.runtime == "docker" else ["--device", "nvidia.com/gpu=all"]
        # Rootless podman maps the caller to root inside; with keep-id files belong to the caller.
        user = [] if self.runtime == "docker" else ["--userns", "keep-id"]
        user += ["--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"]
        # As NVIDIA's images ask for at start: torch and NCCL share memory between a rank's processes.
        memory = ["--ipc", "host", "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
        volumes: list[str] = []
        for path in readable:
            volumes += ["--volume", f"{path}:{path}:ro"]
        for path in writable:
            volumes += ["--volume", f"{path}:{path}"]
        return [self.runtime, "run", "--rm", *gpus, *memory, *user, *volumes, self.image, *command]


def find_builder(recipe: Recipe) -> Builder:
    """The installed ``trtllm-build`` if it is of the recipe's version, else the recipe's container.

    Raises:
        EngineBuildError: There is neither.
    """
    section = recipe.tensorrt_llm
    found = find_installation()
    if found is not None and found.builder is not None and found.version.partition("+")[0] == section.version:
        return Builder(None, None, f"{found.builder}, TensorRT-LLM {found.version}")
    runtime = next((name for name in ("docker", "podman") if shutil.which(name)), None)
    if runtime is not None:
        return Builder(runtime, section.container, f"{runtime}, image {section.container}")
    raise EngineBuildError(
        "there is no trtllm-build here that the recipe can use",
        values=f"{_what_is_there(found)}; neither docker nor podman on PATH",
        limit=f"TensorRT-LLM {section.version}, installed or in {section.container}",
        remedy=_remedy(recipe, found),
    )


def _what_is_there(found: Installation | None) -> str:
    if found is None:
        return "no TensorRT-LLM on PATH"
    if found.builder is None:
        return f"TensorRT-LLM {found.version} without trtllm-build"
    return f"trtllm-build of TensorRT-LLM {found.version}"


def _remedy(recipe: Recipe, found: Installation | None) -> str:
    install = f"install docker or podman, or run inside {recipe.tensorrt_llm.container}"
    if found is not None and found.builder is None and release(found.version) >= (1, 3):
        return (
            "trtllm-build was removed from TensorRT-LLM in June and July 2026 (1.3): for engines "
            f"{install}; for the version that is here run make llm-api RECIPE={recipe.name}"
        )
    return f"{install}; without a GPU build with RUNTIME=embedded"


def run_logged(command: Sequence[str], log: Path, lock: TextIO) -> int:
    """Run a command with all it says in a file.

    Args:
        command: Words.
        log: Written anew.
        lock: Held open by the command too: if we are killed, the next builder waits for its end.

    Returns:
        Its exit code; negative: the signal that ended it.

    Raises:
        EngineBuildError: It cannot be started, or the log cannot be written.
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
                # Reached early by Ctrl-C: docker and trtllm-build end on SIGTERM.
                if process.poll() is None:
                    process.terminate()
                    process.wait()
    except OSError as error:
        raise EngineBuildError(
            f"{command[0]} could not be started",
            values=str(error),
            limit="an executable, and a log that can be written",
            remedy="check the installation and the disk",
        ) from None


def tail(log: Path) -> str:
    """The last lines of a log, on one line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        text = file.read().decode("utf-8", errors="replace")
    return " | ".join(line.strip() for line in text.splitlines()[-12:] if line.strip())
