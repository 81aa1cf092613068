"""Sections of a recipe that only TensorRT-LLM has, and the GPUs that it can name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

Text = Annotated[str, Field(min_length=1)]
GpuName = Literal["h100-80gb", "h200-141gb"]


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU.

    Attributes:
        memory_bytes: Total memory as ``nvidia-smi`` reports it; slightly less can be allocated.
        per_machine: GPUs in a typical server.
    """

    memory_bytes: int
    per_machine: int


_MIB = 1 << 20

# Memory from public nvidia-smi listings of "H100 80GB HBM3" and "H200"; HGX and DGX boards have eight GPUs.
# Both are Hopper: another generation needs rules of its own (FP8 from Ada on, integer weights not on SM 100).
GPUS: dict[GpuName, Gpu] = {
    "h100-80gb": Gpu(memory_bytes=81559 * _MIB, per_machine=8),
    "h200-141gb": Gpu(memory_bytes=143771 * _MIB, per_machine=8),
}


@dataclass(frozen=True)
class TensorRtLlmEngine:
    """Settings of one engine that only TensorRT-LLM has, under the names of its flags and parameters.

    Attributes:
        tp_size: Tensor parallel size: GPUs that share each layer.
        pp_size: Pipeline parallel size: number of stages that the layers are divided into.
        gpu_device_ids: GPUs that the engine runs on; None: the first ``tp_size * pp_size``.
        kv_cache_dtype: ``model`` (type of the activations) or ``fp8``.
        kv_cache_free_gpu_mem_fraction: Fraction of the memory that is free after the engine has loaded; None:
            computed by the memory plan.
        reduce_fusion: Fuse the all-reduce with the following norm; needs ``tp_size`` above 1.
    """

    tp_size: PositiveInt = 1
    pp_size: PositiveInt = 1
    gpu_device_ids: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] | None = None
    kv_cache_dtype: Literal["model", "fp8"] = "model"
    kv_cache_free_gpu_mem_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    reduce_fusion: bool = False

    @property
    def world_size(self) -> int:
        """Return the number of ranks of the engine, which is that of its GPUs."""
        return self.tp_size * self.pp_size

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the GPUs of the machine that the engine runs on, in the order of its ranks."""
        return self.gpu_device_ids or tuple(range(self.world_size))


@dataclass(frozen=True)
class Calibration:
    """Text for calibrating activation scales.

    Attributes:
        text: A text file, or None for the built-in text.
        num_samples: Number of samples.
        seq_len: Tokens per sample.
    """

    text: Text | None = None
    num_samples: PositiveInt = 512
    seq_len: PositiveInt = 512


@dataclass(frozen=True)
class TensorRtLlm:
    """Settings of a pair that only TensorRT-LLM has.

    Attributes:
        gpu: GPU that the engines are built for, one of ``build/tensorrt_llm/settings.py``.
        version: Version of TensorRT-LLM; engines do not run on any other.
        container: Image with that version, for building and serving.
        batch_scheduler_policy: ``guaranteed_no_evict`` or ``max_utilization``.
        draft_tree_top_k: Tokens that each node of a draft's tree proposes; 1: a chain. Only for a trained
            head (EAGLE-3) on the PyTorch backend, from 1.4.
        calibration: Text for calibrating activation scales.
    """

    gpu: GpuName = "h100-80gb"
    version: Text = "1.2.1"
    container: Text = "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"
    batch_scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    draft_tree_top_k: PositiveInt = 1
    calibration: Calibration = Calibration()
