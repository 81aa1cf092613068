"""NVIDIA GPUs of this machine, as its driver reports them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from pipelines.errors import ServerStartError

INSTEAD = "serve on a machine with an NVIDIA GPU, or the embedded runtime here: RUNTIME=embedded"
_FIELDS = ("index", "name", "memory.total", "compute_cap", "driver_version")
_TIMEOUT_S = 30  # a driver that is not kept loaded needs seconds to come up


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: As in ``gpu_device_ids``.
        name: The product.
        memory_mib: All of its memory, MiB.
        compute_capability: Such as ``9.0``.
        driver: Version of the driver.
    """

    index: int
    name: str
    memory_mib: int
    compute_capability: str
    driver: str

    @property
    def sm(self) -> int:
        """Architecture as TensorRT-LLM numbers it: 90 for compute capability 9.0."""
        return int(self.compute_capability.replace(".", ""))


def visible_gpus() -> tuple[Gpu, ...]:
    """Every GPU that ``nvidia-smi`` lists.

    Raises:
        ServerStartError: There is no driver, it does not work, or it knows no GPU.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise _no_gpu("nvidia-smi is not on PATH")
    query = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _no_gpu(f"nvidia-smi: {error}") from None
    if done.returncode != 0:
        # nvidia-smi explains itself on standard output.
        said = " ".join((done.stdout + done.stderr).split()) or "nothing"
        raise _no_gpu(f"nvidia-smi ended with {done.returncode} and said: {said[:300]}")
    try:
        gpus = tuple(_parse(line) for line in done.stdout.splitlines() if line.strip())
    except ValueError:
        raise _no_gpu(f"nvidia-smi said: {' '.join(done.stdout.split())[:300]}") from None
    if not gpus:
        raise _no_gpu("nvidia-smi lists none")
    return gpus


def check_gpus(wanted: tuple[int, ...]) -> tuple[Gpu, ...]:
    """The GPUs of this machine, if those wanted are among them.

    Raises:
        ServerStartError: One is not there; see also ``visible_gpus``.
    """
    gpus = visible_gpus()
    missing = sorted(set(wanted) - {gpu.index for gpu in gpus})
    if missing:
        raise ServerStartError(
            "the engines were made for more GPUs than this machine has",
            values=f"no GPU {', '.join(map(str, missing))}; there are {len(gpus)} x {gpus[0].name}",
            limit=f"gpu_device_ids {', '.join(map(str, wanted))}",
            remedy="choose a recipe with smaller tp_size, name other gpu_device_ids, or RUNTIME=embedded",
        )
    return gpus


def _parse(line: str) -> Gpu:
    index, name, memory, capability, driver = (part.strip() for part in line.split(","))
    float(capability)  # "[N/A]" on a driver that does not know the field
    return Gpu(int(index), name, int(memory), capability, driver)


def _no_gpu(values: str) -> ServerStartError:
    return ServerStartError(
        "no NVIDIA GPU can be used",
        values=values,
        limit="engines of TensorRT-LLM run on NVIDIA GPUs only",
        remedy=INSTEAD,
    )
