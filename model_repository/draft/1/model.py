"""The draft engine in Triton; see pipelines/serving/engine_model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.serving.engine_model import load_engine_model
from pipelines.serving.parameters import ModelParameters


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = load_engine_model(ModelParameters.from_triton(args), pb_utils)

    def execute(self, requests: list[object]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
