"""Runs the draft-then-verify loop; see pipelines/triton/engine/speculative_model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.triton.backend.model import python_model
from pipelines.triton.engine.speculative_model import load_speculative_model

TritonPythonModel = python_model(load_speculative_model, pb_utils)
