"""Text to text by the arm that a request belongs to; see pipelines/serving/router.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.serving.parameters import ModelParameters
from pipelines.serving.router_model import load_router_model


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = load_router_model(ModelParameters.from_triton(args), pb_utils)

    def execute(self, requests: list[object]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
