"""An ensemble with exactly one response; see pipelines/serving/unary_model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.serving.parameters import ModelParameters
from pipelines.serving.unary_model import UnaryModel


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = UnaryModel(ModelParameters.from_triton(args), pb_utils)

    def execute(self, requests: list[object]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
