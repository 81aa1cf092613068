"""The GPUs that a recipe can name, and what a plan needs to know of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        sm: Compute capability, major and minor digit together.
        memory_bytes: What ``nvidia-smi`` reports as total; a little less can be allocated.
        per_node: GPUs of the usual server.
    """

    sm: int
    memory_bytes: int
    per_node: int


_MIB = 1 << 20

# Totals as in public nvidia-smi listings of "H100 80GB HBM3" and "H200"; SM 90 is Hopper, CUDA C++
# Programming Guide, "Compute Capabilities"; eight GPUs per node is an HGX or DGX board.
GPUS = {
    "h100-80gb": Gpu(sm=90, memory_bytes=81559 * _MIB, per_node=8),
    "h200-141gb": Gpu(sm=90, memory_bytes=143771 * _MIB, per_node=8),
}
