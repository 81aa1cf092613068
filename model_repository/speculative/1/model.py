"""Runs the draft-then-verify loop; see pipelines/triton/engine/speculative_model.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.speculative_model import load_speculative_model


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = load_speculative_model(ModelParameters.from_triton(args), pb_utils)

    def execute(self, requests: list[object]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
