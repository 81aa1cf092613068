"""Check what engines of TensorRT-LLM need of this machine, or of the container that asks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pipelines.available_resources import available_cores
from pipelines.deploy.check import Check
from pipelines.deploy.gpus import Gpu, visible_gpus
from pipelines.deploy.triton.nvidia_triton import NvidiaTriton
from pipelines.errors import DraftproofError

MIN_SM = 80  # examples/draft_target_model/README.md of TensorRT-LLM: Ampere or newer
MIN_SM_FP8 = 89
MIN_DRIVER = 580  # CUDA 13, which is in the images of 1.2.1 (NVIDIA's table of minor version compatibility)
PLANNED = 0.97  # of a GPU's memory: build/tensorrt_llm/memory_plan.py leaves the rest to others

READY = "engines can be built and served here"
"""Text of the last check if nothing is missing."""

_NO_GPU = "GPU"
_NO_BUILDER = "not on PATH"
_WITHOUT_GPU = "quantize, preflight, engines --dry-run, and package work; engines and serve do not"

# What nvidia-smi says when it fails, and what helps.
_REMEDIES = {
    "version mismatch": "programs and module of the driver differ: restart the machine",
    "Unknown Error": "the container has lost its GPUs, as after 'systemctl daemon-reload': start it again",
    "No devices were found": "pass GPUs to the container (--gpus all); on the machine, see dmesg for NVRM",
    "not a valid field": f"the driver is too old: install {MIN_DRIVER} or newer",
    "Insufficient Permissions": "a GPU that is divided by MIG cannot be planned: use an undivided one",
}
_ELSE = "check that the driver is loaded, with nvidia-smi on the machine"


def gpu_checks(root: Path = Path("/")) -> list[Check]:
    """Return what was found, without changing anything or raising; the last check is the conclusion.

    Args:
        root: Folder with ``proc`` and the files by which container engines mark their containers.
    """
    builder, triton = shutil.which("trtllm-build"), NvidiaTriton.find()
    lacks = []
    try:
        gpus = visible_gpus()
    except DraftproofError as error:
        checks = [_absent(error, root)]
        lacks.append("no GPU")
    else:
        checks = [*map(_gpu, gpus), *_driver(gpus), _ranks(len(gpus))]
        checks.append(_container(root, complete=builder is not None and triton is not None))
    checks.append(Check("trtllm-build", builder or _NO_BUILDER, is_absent=builder is None))
    path = str(triton.binary) if triton else "not installed here"
    checks.append(Check("NVIDIA's Triton", path, is_absent=triton is None))
    if builder is None:
        lacks.append("no trtllm-build")
    if triton is None:
        lacks.append("no Triton with its backend")
    works = f"{', '.join(lacks)}: {_WITHOUT_GPU}" if lacks else READY
    return [*checks, Check("tensorrt_llm", works)]


def _absent(error: DraftproofError, root: Path) -> Check:
    if shutil.which("nvidia-smi") is not None:
        remedy = next((text for said, text in _REMEDIES.items() if said in error.message), _ELSE)
        return Check(_NO_GPU, error.message, f"{remedy}; the embedded runtime needs no GPU")
    if (root / "proc/driver/nvidia/version").exists():
        remedy = "start the container with --gpus all and NVIDIA's toolkit, or install the driver's programs"
        return Check(_NO_GPU, "nvidia-smi is absent, but the driver is loaded", remedy)
    return Check(_NO_GPU, "none; the embedded runtime needs none")


def _gpu(gpu: Gpu) -> Check:
    value = f"{gpu.name}, {gpu.memory_mib / 1024:.0f} GiB, SM {gpu.sm}, driver {gpu.driver}"
    remedy = ""
    if gpu.sm < MIN_SM:
        remedy = f"speculation with TensorRT-LLM needs SM {MIN_SM} or newer"
    elif gpu.free_mib < PLANNED * gpu.memory_mib:
        value += f", {gpu.free_mib} of {gpu.memory_mib} MiB free"
        remedy = (
            f"the memory plan counts on {PLANNED:.0%} free: end other processes (nvidia-smi lists them), or "
            "set kv_cache_free_gpu_mem_fraction of both engines"
        )
    elif gpu.sm < MIN_SM_FP8:
        remedy = f"FP8 needs SM {MIN_SM_FP8} or newer; INT8 recipes can be built"
    return Check(f"GPU {gpu.index}", value, remedy)


def _driver(gpus: tuple[Gpu, ...]) -> Iterator[Check]:
    driver = gpus[0].driver  # of the machine, for all its GPUs
    major = driver.partition(".")[0]
    if not major.isdecimal():  # "[N/A]"
        yield Check(
            "Driver", "not reported", f"see that /proc/driver/nvidia/version says {MIN_DRIVER} or newer"
        )
    elif int(major) < MIN_DRIVER:
        remedy = f"the recipes' image has CUDA 13: install driver {MIN_DRIVER} or newer on the machine itself"
        yield Check("Driver", driver, remedy)


def _ranks(num_gpus: int) -> Check:
    """Compare cores with the processes of the largest pair: the server, and two ranks on each GPU."""
    cores, processes = available_cores(), 1 + 2 * num_gpus
    value = f"{cores} cores for up to {processes} processes of a pair on {num_gpus} GPUs"
    if cores >= processes:
        return Check("Cores for GPUs", value)
    remedy = "ranks that share a core slow each other: raise --cpus or --cpuset-cpus, or use fewer GPUs"
    return Check("Cores for GPUs", value, remedy)


def _container(root: Path, *, complete: bool) -> Check:
    inside = any((root / mark).exists() for mark in (".dockerenv", "run/.containerenv"))
    version = os.environ.get("NVIDIA_TRITON_SERVER_VERSION", "")
    value = f"NVIDIA's Triton {version}" if version else "one without NVIDIA's Triton" if inside else "none"
    if complete:
        return Check("Container", value)
    return Check("Container", value, "engines are built and served in the recipe's tensorrt_llm.container")
