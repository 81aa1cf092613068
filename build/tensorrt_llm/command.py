"""Compose the ``trtllm-build`` command of an engine, and run it here or in the recipe's container.

Flags are those of TensorRT-LLM 1.2.1. They are passed even if they equal the default, because defaults have
changed between versions (such as ``use_paged_context_fmha``). ``tests/support/tensorrt_llm_1_2_1.py`` lists
the source of each flag.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from build.recipe import Recipe
from build.tensorrt_llm.pair import Pair, Side
from build.tensorrt_llm.versions import Installation, find_installation, release
from pipelines.errors import EngineBuildError

LOGITS_DTYPE = "float32"
TOKENS_PER_BLOCK = 32

GATHERS_LOGITS = {"draft": True, "target": False}
"""Roles whose engines are built with ``--gather_generation_logits``.

The target applies the ratio rule to the draft's logits. Without the flag the draft refuses every request for
them (``executorImpl.cpp`` @b35ac1b6): Triton's backend has no parameter that could replace it.
``trtllm-build`` calls the flag deprecated, because TensorRT-LLM's own programs set it when they run.
"""


@dataclass(frozen=True)
class Paths:
    """Files that a build reads and writes.

    Attributes:
        checkpoint: The TensorRT-LLM checkpoint.
        output: Directory for the engine.
        timing_cache: Timing cache of an earlier build on this GPU, or None.
        new_timing_cache: File for the timing cache of this build.
    """

    checkpoint: Path
    output: Path
    timing_cache: Path | None
    new_timing_cache: Path


def _switch(value: bool) -> str:
    return "enable" if value else "disable"


def engine_flags(pair: Pair, side: Side) -> dict[str, str]:
    """Return all flags of an engine except paths; "" is the value of a flag that takes none.

    ``max_seq_len`` is that of the server; ``trtllm-build`` itself adds ``max_draft_len`` for the target.
    """
    section, serving = side.engine.tensorrt_llm, pair.recipe.serving
    flags = {
        "max_batch_size": str(serving.max_batch_size),
        "max_input_len": str(serving.max_seq_len - 1),
        "max_seq_len": str(serving.max_seq_len),
        "max_num_tokens": str(pair.max_num_tokens),
        "max_beam_width": "1",
        "kv_cache_type": "paged",
        "tokens_per_block": str(TOKENS_PER_BLOCK),
        "logits_dtype": LOGITS_DTYPE,
        "remove_input_padding": "enable",
        "context_fmha": "enable",
        "use_paged_context_fmha": "enable",
        # trtllm-build would force it on with an FP8 KV cache and off otherwise.
        "use_fp8_context_fmha": _switch(side.config.kv_cache_quant_algo == "FP8"),
        "gpt_attention_plugin": "auto",
        "gemm_plugin": "disable" if side.config.quant_algo == "FP8" else "auto",
        "multiple_profiles": "disable",  # with more kernels to choose from, the output depends on the load
        "reduce_fusion": _switch(section.reduce_fusion),
    }
    if GATHERS_LOGITS[side.role]:
        flags["gather_generation_logits"] = ""
    if side.role == "target":
        flags["speculative_decoding_mode"] = "draft_tokens_external"
        flags["max_draft_len"] = str(serving.max_draft_len)
        # The step for which TensorRT chooses kernels; by default, each request would add one token.
        flags["opt_num_tokens"] = str(serving.max_batch_size * (serving.max_draft_len + 1))
    return flags


def build_command(pair: Pair, side: Side, paths: Paths) -> list[str]:
    """Return the command; of one worker per rank, ``trtllm-build`` uses as many as there are GPUs."""
    words = ["trtllm-build", "--checkpoint_dir", str(paths.checkpoint), "--output_dir", str(paths.output)]
    for name, value in engine_flags(pair, side).items():
        words += [f"--{name}", value] if value else [f"--{name}"]
    words += ["--workers", str(side.config.world_size), "--log_level", "info"]
    if paths.timing_cache is not None:
        words += ["--input_timing_cache", str(paths.timing_cache)]
    return [*words, "--output_timing_cache", str(paths.new_timing_cache)]


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
        f"there is no trtllm-build {section.version}: {_describe(found)}; neither docker nor podman, which "
        f"run {section.container}, on PATH",
        _remedy(recipe, found),
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
            f"{install}; for the installed version set tensorrt_llm.version: {found.version} in the recipe"
        )
    return f"{install}; without a GPU, use --runtime embedded"


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
            f"{command[0]} could not be started: {error}", "check the installation and the disk"
        ) from None


def tail(log: Path) -> str:
    """Return the last lines of a log, joined into one line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        text = file.read().decode("utf-8", errors="replace")
    return " | ".join(line.strip() for line in text.splitlines()[-12:] if line.strip())
