"""Check what this machine has for TensorRT-LLM; the embedded runtime needs none of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pipelines.deploy.containers import find_program, query
from pipelines.deploy.doctor.finding import Finding
from pipelines.deploy.doctor.gpus import visible_gpus
from pipelines.deploy.triton.nvidia_triton import NvidiaTriton
from pipelines.errors import DraftproofError

MIN_SM = 80  # examples/draft_target_model/README.md of TensorRT-LLM: Ampere or newer
MIN_SM_FP8 = 89

READY = "engines can be built and served here"
"""Text of the last finding if nothing is missing."""

_NO_GPU = "GPU"
_NO_BUILDER = "not on PATH"
_WITHOUT_GPU = (
    "quantize, acceptance, preflight, engines with ARGS=--dry-run, and deployment work; "
    "engines and serve do not"
)


def gpu_findings() -> list[Finding]:
    """Return what was found, without changing anything or raising; the last finding is the conclusion."""
    gpus, containers, builder, triton = _gpus(), _containers(), _builder(), NvidiaTriton.find()
    server = Finding("NVIDIA's Triton", str(triton.binary) if triton else "not installed here")
    findings = [*gpus, containers, builder, server]
    lacks = []
    if gpus[0].name == _NO_GPU:
        lacks.append("no GPU")
    if containers.remedy and builder.value == _NO_BUILDER:
        lacks.append("no trtllm-build")
    if containers.remedy and triton is None:
        lacks.append("no Triton with its backend")
    works = f"{', '.join(lacks)}: {_WITHOUT_GPU}" if lacks else READY
    return [*findings, Finding("tensorrt_llm", works)]


def _gpus() -> list[Finding]:
    try:
        gpus = visible_gpus()
    except DraftproofError as error:
        if shutil.which("nvidia-smi") is None:
            return [Finding(_NO_GPU, "none; the embedded runtime needs none")]
        return [Finding(_NO_GPU, error.values, "check the driver; the embedded runtime needs no GPU")]
    findings = []
    for gpu in gpus:
        value = f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, SM {gpu.sm}, driver {gpu.driver}"
        remedy = ""
        if gpu.sm < MIN_SM:
            remedy = f"speculation with TensorRT-LLM needs SM {MIN_SM} or newer"
        elif gpu.sm < MIN_SM_FP8:
            remedy = f"FP8 needs SM {MIN_SM_FP8} or newer; INT8 recipes can be built"
        findings.append(Finding(f"GPU {gpu.index}", value, remedy))
    return findings


def _containers() -> Finding:
    found = [name for name in ("docker", "podman") if shutil.which(name)]
    try:
        program = find_program()
    except DraftproofError as error:
        value = f"{error.what}: {error.values}" if found else "no docker, no podman"
        return Finding("Containers", value, error.remedy if found else "needed only for RUNTIME=tensorrt_llm")
    _, toolkit = query(["nvidia-ctk", "--version"])
    return Finding("Containers", f"{program}; {toolkit}")


def _builder() -> Finding:
    program = shutil.which("trtllm-build")
    if program is None:
        return Finding("trtllm-build", _NO_BUILDER)
    # Ask the script's Python for the version of the package, because the script takes half a minute to start.
    first = Path(program).read_bytes().partition(b"\n")[0].decode(errors="replace")
    python = first.removeprefix("#!").strip() if first.startswith("#!") else sys.executable
    question = "import importlib.metadata as m; print(m.version('tensorrt_llm'))"
    code, said = query([*python.split(), "-c", question])
    return Finding("trtllm-build", f"{said if code == 0 else 'unknown version'}, {program}")
