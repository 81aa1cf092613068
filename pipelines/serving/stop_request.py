"""The request that ends another one: ``stop`` with the same request id, as in TensorRT-LLM."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.serving.triton_wire import scalar_tensor


def stop_tensors() -> dict[str, npt.NDArray[Any]]:
    """Inputs for ``draft``, ``target`` or ``speculative``; what it must have besides ``stop`` is ignored."""
    return {
        "input_ids": np.zeros((1, 1), dtype=np.int32),
        "input_lengths": scalar_tensor(1, np.int32),
        "request_output_len": scalar_tensor(1, np.int32),
        "stop": scalar_tensor(True, np.bool_),
    }
