"""Both ends of ensemble; see pipelines/triton/text/ensemble_steps.py."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils

from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.text.ensemble_steps import EnsembleSteps


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._model = EnsembleSteps(ModelParameters.from_triton(args), pb_utils)

    def execute(self, requests: list[object]) -> None:
        self._model.execute(requests)

    def finalize(self) -> None:
        self._model.close()
