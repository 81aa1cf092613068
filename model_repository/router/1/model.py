"""Answers with text; see pipelines/triton/text/model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.triton.backend.model import python_model
from pipelines.triton.text.model import TextModel

TritonPythonModel = python_model(TextModel, pb_utils)
