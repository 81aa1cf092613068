"""Streams text from the target alone; see pipelines/serving/text/model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.serving.text.model import load_text_model
from pipelines.serving.triton.parameters import ModelParameters


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = load_text_model(ModelParameters.from_triton(args), pb_utils)

    def execute(self, requests: list[object]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
