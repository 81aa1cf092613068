"""Find the NVIDIA GPUs of this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.errors import ServerStartError

INSTEAD = "use a machine with an NVIDIA GPU, or the embedded runtime: --runtime embedded"
_FIELDS = ("index", "name", "memory.total", "memory.free", "compute_cap", "driver_version")
_TIMEOUT_S = 30  # without persistence mode, loading the driver takes seconds


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        index: Its number, as in ``gpu_device_ids``.
        name: Product name.
        memory_mib: Total memory, MiB.
        free_mib: Memory that nobody uses, MiB.
        compute_capability: Compute capability, such as ``9.0``.
        driver: Version of the driver.
    """

    index: int
    name: str
    memory_mib: int
    free_mib: int
    compute_capability: str
    driver: str

    @property
    def sm(self) -> int:
        """Return the compute capability without its dot, such as 90 for 9.0."""
        return int(self.compute_capability.replace(".", ""))


def visible_gpus() -> tuple[Gpu, ...]:
    """Return every GPU that ``nvidia-smi`` lists.

    Raises:
        ServerStartError: There is no driver, it does not work, or it finds no GPU.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise _no_gpu("nvidia-smi is not on PATH")
    query = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    code, output = output_of(query)
    said = " ".join(output.split())[:300]
    if code != 0:  # nvidia-smi explains itself on standard output
        raise _no_gpu(f"nvidia-smi exited with code {code}: {said or 'nothing'}")
    try:
        gpus = tuple(_parse(line) for line in output.splitlines() if line.strip())
    except ValueError:
        raise _no_gpu(f"unexpected output of nvidia-smi: {said}") from None
    if not gpus:
        raise _no_gpu("nvidia-smi lists no GPU")
    return gpus


def check_gpus(wanted: tuple[int, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, after checking that it has the required ones.

    Raises:
        ServerStartError: A required GPU is missing; see also ``visible_gpus``.
    """
    gpus = visible_gpus()
    missing = sorted(set(wanted) - {gpu.index for gpu in gpus})
    if missing:
        raise ServerStartError(
            f"the engines need the GPUs {', '.join(map(str, wanted))}, and this machine has no "
            f"{', '.join(map(str, missing))}: there are {len(gpus)} x {gpus[0].name}",
            "use a recipe with a smaller tp_size or other gpu_device_ids, or --runtime embedded",
        )
    return gpus


def output_of(command: Sequence[str]) -> tuple[int, str]:
    """Run a short command and return its exit code and output; 127 if it cannot be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 127, str(error)
    return done.returncode, done.stdout.strip()


def _parse(line: str) -> Gpu:
    index, name, memory, free, capability, driver = (part.strip() for part in line.split(","))
    float(capability)  # "[N/A]" if the driver does not support the field
    return Gpu(int(index), name, int(memory), int(free), capability, driver)


def _no_gpu(why: str) -> ServerStartError:
    return ServerStartError(f"no NVIDIA GPU can be used: {why}", INSTEAD)
