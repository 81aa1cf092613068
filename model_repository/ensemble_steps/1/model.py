"""Both ends of ensemble; see pipelines/triton/text/ensemble_steps.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.triton.backend.model import python_model
from pipelines.triton.text.ensemble_steps import EnsembleSteps

TritonPythonModel = python_model(EnsembleSteps, pb_utils)
