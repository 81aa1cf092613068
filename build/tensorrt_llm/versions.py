"""Determine the version of TensorRT-LLM in an image or an installation, and its capabilities."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# The only version whose flags were all compared with its source.
KNOWN_FLAGS = "1.2.1"

# NVIDIA's monthly images with it: triton-inference-server/server, docs/introduction/compatibility.md
# @4b544591. 26.08 and later are not known.
_IMAGE = re.compile(r"nvcr\.io/nvidia/tritonserver:(\d\d\.\d\d)-trtllm-python-py3")
_IMAGES = ("26.04", "26.05", "26.06", "26.07")

_TIMEOUT_S = 60.0
_VERSION_OF = "import importlib.metadata as m; print(m.version('tensorrt_llm'))"


def release(version: str) -> tuple[int, int]:
    """Return major and minor number; (0, 0) if the text is not a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def serves_checkpoints(version: str) -> bool:
    """Return whether a version serves checkpoints by its PyTorch backend, and builds no engines."""
    return release(version) >= (1, 3)


def image_version(image: str) -> str | None:
    """Return the version in one of NVIDIA's images, in words if it is not the known one; None for others."""
    found = _IMAGE.fullmatch(image)
    return found and (KNOWN_FLAGS if found[1] in _IMAGES else "of another version")


def has_fixed_tag(image: str) -> bool:
    """Return whether an image's name has a digest, or a tag other than ``latest``."""
    name, _, digest = image.partition("@")
    return bool(digest) or name.rpartition("/")[2].partition(":")[2] not in ("", "latest")


@dataclass(frozen=True)
class Installation:
    """A TensorRT-LLM on this machine.

    Attributes:
        builder: Path of ``trtllm-build``, or None if this version has none.
        version: Version of its package, or ``unknown``.
    """

    builder: Path | None
    version: str


def find_installation() -> Installation | None:
    """Return the TensorRT-LLM whose programs are on PATH, or None.

    ``trtllm-build`` has no ``--version``, and importing the package initializes CUDA. The version is
    therefore read with ``importlib.metadata`` by the interpreter in the program's first line.
    """
    builder, server = shutil.which("trtllm-build"), shutil.which("trtllm-serve")
    program = builder or server
    if program is None:
        return None
    return Installation(Path(builder) if builder else None, _version_of(Path(program)))


def _version_of(program: Path) -> str:
    try:
        interpreter = _interpreter(program)
        if interpreter is None:
            return "unknown"
        command = [interpreter, "-c", _VERSION_OF]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _interpreter(program: Path) -> str | None:
    with program.open("rb") as file:
        head = file.read(1024).decode("utf-8", errors="replace")
    # pip writes the second form if the path is too long for a shebang.
    found = re.match(r"#!(\S*python\S*)", head) or re.match(r"#!/bin/sh\n'''exec' \"?([^\s\"]+)", head)
    return found[1] if found and Path(found[1]).is_file() else None
