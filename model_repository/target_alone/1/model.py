"""Serves the target of TensorRT-LLM alone; see pipelines/triton/tensorrt_llm/target_alone_model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.triton.backend.model import python_model
from pipelines.triton.tensorrt_llm.target_alone_model import load_target_alone_model

TritonPythonModel = python_model(load_target_alone_model, pb_utils)
