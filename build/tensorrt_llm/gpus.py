"""GPUs that a recipe can name, with the properties that plans and rules use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GpuName = Literal["h100-80gb", "h200-141gb"]


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        sm: Compute capability, major and minor digit together.
        memory_bytes: Total memory as ``nvidia-smi`` reports it; slightly less can be allocated.
        per_node: GPUs in a typical server.
    """

    sm: int
    memory_bytes: int
    per_node: int


_MIB = 1 << 20

# Memory from public nvidia-smi listings of "H100 80GB HBM3" and "H200"; SM 90 is Hopper (CUDA C++
# Programming Guide, "Compute Capabilities"); HGX and DGX boards have eight GPUs.
GPUS: dict[GpuName, Gpu] = {
    "h100-80gb": Gpu(sm=90, memory_bytes=81559 * _MIB, per_node=8),
    "h200-141gb": Gpu(sm=90, memory_bytes=143771 * _MIB, per_node=8),
}
